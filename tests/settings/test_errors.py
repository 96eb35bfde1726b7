"""Settings that are wrong: each fault is named with its place, the rule and the value, and nothing else is raised."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import PolicyError
from curtsy.settings import Settings, load, load_limits
from curtsy.settings.keys import keys
from tests.settings.test_settings import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def fault(project: Project, text: str | bytes, name: str = "domains.yaml", **more: Any) -> str:
    """What is said of a file."""
    path = project.directory / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PolicyError) as caught:
        project.load(config=name, **more)
    return str(caught.value)


def test_a_negative_rate_is_named_with_file_line_entry_rule_value_and_default(project: Project) -> None:
    """U9: a negative rate"""
    text = "allowlist:\n- domain: a.org\n- domain: b.org\n- domain: example.org\n  qps: -1\n"

    message = fault(project, text)

    assert message == (
        'domains.yaml, line 5, allowlist[2] "example.org": qps = -1 must be above 0. '
        "Leave the line out to use the default, 0.8."
    )


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("nope", "store = 'nope' must begin with one of memory:, sqlite:, redis:"),
        ("reddis://host", "Did you mean redis:?"),
        ("sqlite:/x", "store = 'sqlite:/x' must name a file after three slashes."),
        ("redis://host:99999/0", "store: redis://host:99999/0: 'host:99999' is no host and port."),
        ("redis://host/first", "store: redis://host/first: the database 'first' must be a number."),
        ("redis://one,two", "store: redis://one,two names several hosts. Write redis+cluster://"),
        ("redis+sentinel://host", "store: redis+sentinel://host names no service."),
        ("redis://:hunter2@host:x", "'host:x' is no host and port."),
    ],
)
def test_a_store_that_can_be_nowhere_is_named_with_its_place(project: Project, store: str, message: str) -> None:
    """U9, F62: when settings are read, not when it is opened; without its password"""
    in_file = fault(project, f"# ours\nstore: {store}\n")
    in_environment = fault(project, "", env={"CURTSY_STORE": store})

    assert in_file.startswith("domains.yaml, line 2: store")
    assert in_environment.startswith("environment variable CURTSY_STORE: store")
    assert message in in_file
    assert message in in_environment
    assert "hunter2" not in in_file + in_environment


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("qps: 0", "qps = 0 must be above 0. Leave the line out to use the default, 0.8."),
        ("qps: .nan", "qps = .nan must be a finite number. Leave the line out to use the default, 0.8."),
        ("qps: nan", "qps = nan must be a finite number. Leave the line out to use the default, 0.8."),
        ("qps: .inf", "qps = .inf must be a finite number. Leave the line out to use the default, 0.8."),
        ("qps: 1e999", "qps = 1e999 must be a finite number. Leave the line out to use the default, 0.8."),
        ("qps: true", "qps = true must be a number. Leave the line out to use the default, 0.8."),
        ("qps: '1'", "qps = '1' must be a number. Leave the line out to use the default, 0.8."),
        ("qps: [1]", "qps = [1] must be a number. Leave the line out to use the default, 0.8."),
        (
            "qps: 0.00001",
            "qps = 0.00001 must be at least one request a day, 1/86400. To ask never, put the domain on the denylist. "
            "Leave the line out to use the default, 0.8.",
        ),
        ("burst: 0", "burst = 0 must be at least 1. Leave the line out to use the default, 1."),
        ("burst: 1.5", "burst = 1.5 must be a whole number. Leave the line out to use the default, 1."),
        ("burst: none", "burst = none must be a whole number. Leave the line out to use the default, 1."),
        (
            "max_requests_per_day: -1",
            "max_requests_per_day = -1 must be at least 0. Leave the line out to use the default, 200.",
        ),
        ("breaker: maybe", "breaker = 'maybe' must be true or false. Leave the line out to use the default, true."),
        ("delay: 100000", "delay = 100000 must be a number of at least 0 and at most 86400."),
        (
            "strategy: fast",
            "strategy = 'fast' must be 'token_bucket', 'leaky_bucket' or 'sliding_window'. "
            "Leave the line out to use the default, token_bucket.",
        ),
        (
            "timezone: Europe",
            "timezone = 'Europe' must be the IANA name of a time zone, such as Europe/Berlin, or local. "
            "Leave the line out to use the default, local.",
        ),
        (
            "timezone: ../../etc/passwd",
            "timezone = '../../etc/passwd' must be the IANA name of a time zone, such as Europe/Berlin, or local. "
            "Leave the line out to use the default, local.",
        ),
        ("pause: [1]", "pause = [1] must be a list of 2. Leave the line out to use the default, [1.5, 5.5]."),
        ("pause: [1, x]", "pause[1] = 'x' must be a number."),
        ("pause: [3, 2]", "pause_min = 3 must be at most pause_max, 2. Give both, as pause: [least, largest]."),
        ("pause_max: 1", "pause_max = 1 must be at least pause_min, 1.5. Give both, as pause: [least, largest]."),
        (
            "deny_paths: [private]",
            "deny_paths[0] = 'private' must be a path that begins with / or *, such as /private.",
        ),
        (
            "domain_category: 7",
            "domain_category = 7 must be text, in quotes. Leave the line out to use the default, default.",
        ),
        ("qsp: 1", "qsp is not a setting here. Did you mean qps?"),
        ("category: x", "category is not a setting here. Did you mean domain_category?"),
        ("store: x", "store is not a setting here. It belongs at the top of the file."),
        ("zzz: 1", "zzz is not a setting here. `curtsy config show` lists all of them."),
    ],
)
def test_a_value_that_breaks_a_rule_is_named_with_its_line(project: Project, line: str, message: str) -> None:
    """U9: the field, the rule, the value given, and what to do"""
    assert fault(project, f"default_policy:\n  {line}\n") == f"domains.yaml, line 2, default_policy: {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "- a\n",
            'domains.yaml: the file must hold settings such as "default_policy:", not a list. Is it the right file?',
        ),
        (
            "7\n",
            'domains.yaml: the file must hold settings such as "default_policy:", not a number. Is it the right file?',
        ),
        ("qps: 1\n", "domains.yaml, line 1: qps is not a setting here. It belongs under default_policy."),
        (
            "shared: true\n",
            "domains.yaml, line 1: shared is not a setting here. It belongs under an entry of allowlist.",
        ),
        ("denilist: []\n", "domains.yaml, line 1: denilist is not a setting here. Did you mean denylist?"),
        (
            "default_policy: 3\n",
            "domains.yaml, line 1: default_policy must be settings, one in a line, not a number. Indent them under it.",
        ),
        (
            "allowlist: a.org\n",
            "domains.yaml, line 1: allowlist must be a list, not text. Begin each entry with a dash.",
        ),
        (
            "denylist: {a: b}\n",
            "domains.yaml, line 1: denylist must be a list, not a mapping. Begin each entry with a dash.",
        ),
        (
            "denylist: [3]\n",
            "domains.yaml, line 1: denylist[0] = 3 must be a domain, or a mapping that has one, as "
            "- domain: example.org.",
        ),
        (
            "denylist:\n- domain: a.org\n  qps: 1\n",
            'domains.yaml, line 3, denylist[0] "a.org": qps is not a setting here. Known here: domain.',
        ),
        (
            "allowlist:\n- qps: 1\n",
            "domains.yaml, line 2, allowlist[0]: domain is missing. Add a line domain: example.org.",
        ),
        (
            "allowlist:\n- domain: https://example.com/\n",
            "domains.yaml, line 2, allowlist[0] \"https://example.com/\": domain = 'https://example.com/' must be "
            "a host without a scheme. Write 'example.com'.",
        ),
        (
            "allowlist:\n- domain: ''\n",
            "domains.yaml, line 2, allowlist[0] \"\": domain = '' must not be empty. Give a host such as example.com.",
        ),
        (
            "allowlist:\n- a.org\n- b.org\n- www.A.org\n",
            'domains.yaml, line 4, allowlist[2] "www.A.org": a.org is given twice, first in line 2. '
            "Make one entry of the two.",
        ),
        (
            "allowlist:\n- {domain: a.org, strategy: sliding_window}\ndefault_policy: {burst: 300}\n",
            'domains.yaml, line 2, allowlist[0] "a.org": burst = 300 must be a whole number up to 256 with '
            "sliding_window, which remembers each request.",
        ),
        ("preset: fast\n", None),
        ("a: 1\na: 2\n", "domains.yaml, line 2: a is given twice, first in line 1. Remove one of them."),
        ("a: !!python/object:os.system x\n", None),
        ("a: 1\n---\nb: 2\n", "domains.yaml, line 2: a second document begins here. Put each into a file of its own."),
        ("? [a]\n: b\n", "domains.yaml, line 1: a key must be a word."),
        ("a: &a [*a]\n", "domains.yaml, line 1: *a stands for nothing that is complete above it."),
        (b"a: 1\nb: \xff\n", "domains.yaml, line 2: this is not UTF-8. Save the file in that encoding."),
        ("a: \0\n", None),
    ],
)
def test_a_file_of_another_shape_is_an_error_that_says_what_is_wanted(
    project: Project, text: str | bytes, message: str | None
) -> None:
    """U9"""
    found = fault(project, text)

    assert found.startswith("domains.yaml")
    assert message is None or found == message


def test_a_file_that_is_not_yaml_is_named_with_the_line(project: Project) -> None:
    """U9"""
    message = fault(project, "default_policy:\n  qps: [1, 2\nallowlist:\n")

    assert message.startswith("domains.yaml, line 3: this is not YAML: ")
    assert message.endswith("Look at the indentation, colons and quotes of that line and the one before.")


def test_the_default_in_the_hint_is_the_one_that_would_hold(project: Project) -> None:
    """U9"""
    text = "default_policy: {qps: 0.25}\nallowlist: [{domain: a.org, qps: -1}]\n"

    assert fault(project, text).endswith("Leave the line out to use the default, 0.25.")
    assert fault(project, text, env={"CURTSY_QPS": "none"}).endswith("Leave the line out to use the default, none.")


def test_all_faults_of_all_files_are_told_at_once(project: Project) -> None:
    """U9"""
    project.write_user("default_policy: {burst: 0}\n")
    lines = "".join(f"- domain: a{number}.org\n  qps: -1\n" for number in range(30))

    message = fault(project, f"stor: x\nallowlist:\n{lines}", env={"CURTSY_DELAY": "x"})

    assert "burst = 0" in message
    assert "stor is not a setting here. Did you mean store?" in message
    assert "environment variable CURTSY_DELAY: delay = 'x' must be a number. Unset it to use the default, 0." in message
    assert message.endswith("\nAnd 13 more like these.")


@pytest.mark.parametrize(
    ("variable", "text", "rule", "default"),
    [
        ("CURTSY_QPS", "fast", "qps = 'fast' must be a number", "0.8"),
        ("CRAWLER_GLOBAL_QPS", "-1", "global_qps = -1 must be above 0", "0.8"),
        ("CRAWLER_PER_DOMAIN_QPS", "nan", "qps = nan must be a finite number", "0.8"),
        ("RAG_RESPECT_ROBOTS_TXT", "perhaps", "respect_robots = 'perhaps' must be true or false", "true"),
        ("RAG_ROBOTS_TXT_CACHE_TTL", "1h", "robots_ttl = '1h' must be a number", "3600"),
        ("CIRCUIT_BREAKER_ENABLED", "2", "breaker = 2 must be true or false", "true"),
        ("CIRCUIT_BREAKER_COOLDOWN", "0", "breaker_cooldown = 0 must be above 0", "300"),
        ("CURTSY_LOG_LEVEL", "loud", "log_level = 'loud' must be 'debug', 'info', 'warn' or 'error'", "info"),
        ("CURTSY_PRESET", "fast", "preset = 'fast' must be 'gentle', 'broad' or 'own'", "gentle"),
    ],
)
def test_a_bad_variable_is_named_with_rule_and_value(
    project: Project, variable: str, text: str, rule: str, default: str
) -> None:
    """C7, Q7"""
    with pytest.raises(PolicyError) as caught:
        project.load(env={variable: text})

    assert str(caught.value) == f"environment variable {variable}: {rule}. Unset it to use the default, {default}."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"qps": -1}, "argument: qps = -1 must be above 0. Leave it out to use the default, 0.8."),
        ({"qps": True}, "argument: qps = true must be a number. Leave it out to use the default, 0.8."),
        ({"burst": "2"}, "argument: burst = '2' must be a whole number. Leave it out to use the default, 1."),
        ({"qsp": 1}, "argument: qsp is not a setting here. Did you mean qps?"),
        ({"zzz": 1}, "argument: zzz is not a setting here. `curtsy config show` lists all of them."),
        ({"default_policy": {"qps": 1}}, "argument: default_policy is a section of files. Give its keys as arguments."),
        ({"user_agent": None}, None),
        ({"qps": object()}, None),
        ({"allowlist": [{"domain": "a.org", "qps": 0}]}, None),
    ],
)
def test_a_bad_argument_is_an_error(project: Project, arguments: dict[str, Any], message: str | None) -> None:
    """U9"""
    with pytest.raises(PolicyError) as caught:
        project.load(**arguments)

    assert str(caught.value).startswith("argument")
    assert message is None or str(caught.value) == message


def test_a_misspelt_argument_may_have_been_meant_for_one_that_is_no_setting(project: Project) -> None:
    """U9: all that is wrong is told at once"""
    with pytest.raises(PolicyError) as caught:
        project.load(beside=("verify", "cookies"), verfy=1, zzz=2, qps=-1)

    assert str(caught.value).splitlines() == [
        "argument: verfy is not a setting here. Did you mean verify?",
        "argument: zzz is not a setting here. `curtsy config show` lists the settings, help(curtsy.AsyncClient) the "
        "other arguments.",
        "argument: qps = -1 must be above 0. Leave it out to use the default, 0.8.",
    ]


# --- Files that cannot be read


def test_a_named_file_that_does_not_exist_is_an_error(project: Project) -> None:
    """U9"""
    with pytest.raises(PolicyError, match=r"^nowhere\.yaml does not exist\. Create it, or give another path\.$"):
        project.load(config="nowhere.yaml")
    with pytest.raises(PolicyError, match=r"^gone\.yaml does not exist"):
        project.load(env={"CURTSY_CONFIG": "gone.yaml"})


def test_a_directory_is_no_file(project: Project) -> None:
    """U9"""
    (project.directory / "curtsy.yaml").mkdir()

    with pytest.raises(PolicyError, match=r"^curtsy\.yaml is a directory\. Give the path of a file in it\.$"):
        project.load()


def test_a_link_to_nowhere_is_an_error_though_nobody_named_it(project: Project) -> None:
    """U9: a denylist that was moved away must not be overlooked"""
    (project.directory / "curtsy.yaml").symlink_to("moved.yaml")

    with pytest.raises(PolicyError, match=r"^curtsy\.yaml does not exist"):
        project.load()


def test_a_directory_that_was_removed_and_an_unknown_user_are_no_traceback(tmp_path: Path) -> None:
    """U9"""
    code = (
        "import os, pydantic; from curtsy.settings import load; os.rmdir(os.getcwd()); "
        "print(load(cache_dir='~nobody/x').files)"
    )
    (tmp_path / "gone").mkdir()

    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "gone",
        env={"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("()\n", "")


def test_a_pipe_is_no_file_and_is_not_waited_for(project: Project) -> None:
    """U9"""
    os.mkfifo(project.directory / "pipe.yaml")

    with pytest.raises(PolicyError, match=r"^pipe\.yaml is not a plain file"):
        project.load(config="pipe.yaml")


def test_a_file_that_may_not_be_read_is_an_error(project: Project) -> None:
    """U9"""
    path = project.write("qps: 1\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        path.unlink()  # the superuser reads anything: a link to itself is as unreadable
        path.symlink_to(path)

    with pytest.raises(PolicyError, match=r"^curtsy\.yaml cannot be read: "):
        load(config="curtsy.yaml", directory=project.directory, user_directory=project.user, env={})


def test_a_path_with_a_nul_is_an_error(project: Project) -> None:
    """U9"""
    with pytest.raises(PolicyError, match="cannot be read"):
        project.load(config="a\0b.yaml")


def test_a_huge_file_is_not_read(project: Project) -> None:
    """U9"""
    path = project.directory / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)  # no disk is used: the file is one hole
    assert stat.S_ISREG(path.stat().st_mode)

    with pytest.raises(PolicyError, match=r"^huge\.yaml has more than 16,777,216 bytes"):
        project.load(config="huge.yaml")


def test_a_bomb_of_aliases_does_not_go_off(project: Project) -> None:
    """U16: a file of a few hundred bytes that stands for a billion values"""
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + before] * 10)}]")
    began = time.process_time()

    message = fault(project, "\n".join(lines))

    assert message == "domains.yaml, line 6: more than 1,000,000 values, aliases followed. Give plain settings."
    assert time.process_time() - began < 5


def test_a_deep_file_is_refused_before_it_is_deep(project: Project) -> None:
    """U16"""
    assert "this is the level number 21" in fault(project, "a: " + "[" * 100_000)
    assert "too deep" in fault(project, "[" * 100_000 + "]" * 100_000, "deep.json")


# --- The JSON file


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": "2.0", "domains": {}}', 'version = \'2.0\' is not known here. Write "version": "1.0".'),
        ('{"version": 1.0, "domains": {}}', 'version = 1 is not known here. Write "version": "1.0".'),
        ('{"domains": {}}', 'version is missing. Write "version": "1.0".'),
        ('{"version": "1.0", "domain": {}}', "domain is not a setting here. Did you mean domains?"),
        ('{"version": "1.0", "default": {}}', "default is not a setting here. Did you mean default_config?"),
    ],
)
def test_a_json_file_of_another_version_or_shape_is_an_error(project: Project, text: str, message: str) -> None:
    """L7"""
    path = project.write(text, "limits.json")

    assert fault(project, text, "limits.json") == f"limits.json: {message}"
    with pytest.raises(PolicyError) as caught:
        load_limits(path)
    assert str(caught.value) == f"{path}: {message}"


def test_all_faults_are_told_at_once(project: Project) -> None:
    """U9: what is wrong with one value hides nothing that is wrong with the others of its section"""
    text = (
        "default_policy:\n  qps: -1\n  pause: [5, 1]\n"
        "allowlist:\n- domain: a.org\n  qps: -2\n- domain: a.org\n"
        "- domain: b.org\n  timeout: -1\n  pause_min: 9\n  pause_max: 2\n"
        "- domain: c.org\n  pause_min: -1\n  pause_max: 1\n"
    )

    message = fault(project, text)

    assert sorted(line.split(".yaml, ")[1].split(" must ")[0] for line in message.splitlines()) == [
        'line 10, allowlist[2] "b.org": pause_min = 9',
        'line 13, allowlist[3] "c.org": pause_min = -1',
        "line 2, default_policy: qps = -1",
        "line 3, default_policy: pause_min = 5",
        'line 6, allowlist[0] "a.org": qps = -2',
        'line 7, allowlist[1] "a.org": a.org is given twice, first in line 5. Make one entry of the two.',
        'line 9, allowlist[2] "b.org": timeout = -1',
    ]


def test_every_entry_of_the_json_file_is_checked_before_any_is_used(project: Project) -> None:
    """L6, L7, L8"""
    text = """{"version": "1.0", "default_config": {"requests_per_second": 0.5}, "domains": {
        "good.example": {"requests_per_second": 1},
        "https://bad.example": {},
        "a.example": {"requests_per_second": -1, "burst_capacity": 0},
        "b.example": {"requests_per_second": NaN},
        "slow.example": {"requests_per_second": 0.000001},
        "c.example": {"burst_capacity": true},
        "d.example": {"burst": 1},
        "e.example": 3,
        "": {}
    }}"""
    path = project.write(text, "limits.json")

    with pytest.raises(PolicyError) as caught:
        load_limits(path)

    assert str(caught.value).replace(str(path), "limits.json").splitlines() == [
        "limits.json, domains \"https://bad.example\": domain = 'https://bad.example' must be a host without a scheme. "
        "Write 'bad.example'.",
        'limits.json, domains "a.example": requests_per_second = -1 must be above 0. '
        "Leave it out to use the default, 0.5.",
        'limits.json, domains "a.example": burst_capacity = 0 must be at least 1. Leave it out to use the default, 1.',
        'limits.json, domains "b.example": requests_per_second = nan must be a finite number. '
        "Leave it out to use the default, 0.5.",
        'limits.json, domains "slow.example": requests_per_second = 0.000001 must be at least one request a day, '
        "1/86400. To ask never, put the domain on the denylist. Leave it out to use the default, 0.5.",
        'limits.json, domains "c.example": burst_capacity = true must be a whole number. '
        "Leave it out to use the default, 1.",
        'limits.json, domains "d.example": burst is not a setting here. '
        "Known here: requests_per_second, burst_capacity.",
        'limits.json: domains "e.example" must be settings, not a number. Name each of them under domains "e.example".',
        "limits.json, domains \"\": domain = '' must not be empty. Give a host such as example.com.",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": "1.0",\n"a"}', "limits.json, line 2: this is not JSON: "),
        ('{"version": "1.0", "version": "1.0"}', 'limits.json: "version" is given twice. Remove one of them.'),
        ("[]", "limits.json: the file must hold "),
        ('{"version": "1.0", "domains": []}', "limits.json: domains must be settings, not a list."),
        (
            '{"version": "1.0", "domains": {"a.org": {}, "A.org": {}}}',
            'limits.json, domains "A.org": a.org is given twice.',
        ),
        (f'{{"version": {"9" * 5000}}}', "limits.json: "),
    ],
)
def test_a_file_that_is_not_json_is_an_error(project: Project, text: str, message: str) -> None:
    """L7"""
    assert fault(project, text, "limits.json").startswith(message)
    with pytest.raises(PolicyError):
        load_limits(project.directory / "limits.json")


# --- Whatever is in a file

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["none", "example.org", "own"]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
sections = st.dictionaries(st.sampled_from([*keys(), "qsp"]), values, max_size=4)
files = st.dictionaries(
    st.sampled_from(["default_policy", "allowlist", "denylist", "version", "domains", "default_config", *keys()]),
    st.one_of(values, sections, st.lists(sections | values, max_size=3)),
    max_size=4,
)


@given(files)
def test_any_file_gives_settings_or_one_clear_error(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    """U9, U16"""
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True), errors="surrogatepass")

    assert outcome(path)


@given(st.text(max_size=60) | st.text(alphabet="a:- \n[]{}&*!|>'\"#%@`,?0", max_size=60))
def test_any_text_gives_settings_or_one_clear_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """U9, U16"""
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(text, errors="surrogatepass")

    assert outcome(path)
    assert outcome(path.rename(path.with_suffix(".json")))


def outcome(path: Path) -> Settings | str:
    try:
        return load(config=path, directory=path.parent, user_directory=path.parent / "user", env={})
    except PolicyError as error:
        return str(error)
