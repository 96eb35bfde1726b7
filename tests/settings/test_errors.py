"""Settings that are wrong: each fault is named with its place, the rule and the value, and nothing else is raised."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import PolicyError
from curtsy.settings import Settings, load, load_limits
from curtsy.settings.general import keys
from tests.settings.test_settings import Project
from tests.support.bounds import cpu_within
from tests.support.said import missing
from tests.support.snapshot import Snapshot


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


def remedy_of(message: str) -> str:
    """Return the last sentence, of a message that quotes the system or another library before it."""
    return message.rsplit(". ", 1)[1]


def test_a_negative_rate_is_named_with_file_line_entry_rule_value_and_default(
    project: Project, snapshot: Snapshot
) -> None:
    """U9: a negative rate"""
    text = "allowlist:\n- domain: a.org\n- domain: b.org\n- domain: example.org\n  qps: -1\n"

    message = fault(project, text)

    assert missing(message, "domains.yaml", "line 5", "allowlist[2]", "example.org", "qps = -1", "0.8") == []
    snapshot(message)


@pytest.mark.parametrize(
    ("store", "datum"),
    [
        ("nope", "nope"),
        ("reddis://host", "redis:?"),
        ("sqlite:/x", "sqlite:/x"),
        ("redis://host:99999/0", "host:99999"),
        ("redis://host/first", "'first'"),
        ("redis://one,two", "redis+cluster://"),
        ("redis+sentinel://host", "redis+sentinel://host"),
        ("redis://:hunter2@host:x", "host:x"),
    ],
)
def test_a_store_that_can_be_nowhere_is_named_with_its_place(
    project: Project, snapshot: Snapshot, store: str, datum: str
) -> None:
    """U9, F62: when settings are read, not when it is opened; without its password"""
    in_file = fault(project, f"# ours\nstore: {store}\n")
    in_environment = fault(project, "", env={"CURTSY_STORE": store})

    assert missing(in_file, "domains.yaml", "line 2", "store", datum) == []
    assert missing(in_environment, "CURTSY_STORE", datum) == []
    assert "hunter2" not in in_file + in_environment
    snapshot(in_file, "in a file")
    snapshot(in_environment, "in the environment")


@pytest.mark.parametrize(
    ("line", "given", "remedy"),
    [
        ("qps: 0", "qps = 0", "0.8"),
        ("qps: .nan", "qps = .nan", "0.8"),
        ("qps: nan", "qps = nan", "0.8"),
        ("qps: .inf", "qps = .inf", "0.8"),
        ("qps: 1e999", "qps = 1e999", "0.8"),
        ("qps: true", "qps = true", "0.8"),
        ("qps: '1'", "qps = '1'", "0.8"),
        ("qps: [1]", "qps = [1]", "0.8"),
        ("qps: 0.00001", "qps = 0.00001", "1/86400"),
        ("burst: 0", "burst = 0", "1"),
        ("burst: 1.5", "burst = 1.5", "1"),
        ("burst: none", "burst = none", "1"),
        ("max_requests_per_day: -1", "max_requests_per_day = -1", "200"),
        ("breaker: maybe", "breaker = 'maybe'", "true"),
        ("delay: 100000", "delay = 100000", "86400"),
        ("strategy: fast", "strategy = 'fast'", "token_bucket"),
        ("timezone: Europe", "timezone = 'Europe'", "local"),
        ("timezone: ../../etc/passwd", "timezone = '../../etc/passwd'", "local"),
        ("pause: [1]", "pause = [1]", "[1.5, 5.5]"),
        ("pause: [1, x]", "pause[1] = 'x'", ""),
        ("pause: [3, 2]", "pause_min = 3", "pause_max, 2"),
        ("pause_max: 1", "pause_max = 1", "pause_min, 1.5"),
        ("deny_paths: [private]", "deny_paths[0] = 'private'", "/private"),
        ("domain_category: 7", "domain_category = 7", "default"),
        ("qsp: 1", "qsp", "qps"),
        ("category: x", "category", "domain_category"),
        ("store: x", "store", ""),
        ("zzz: 1", "zzz", "curtsy config show"),
    ],
)
def test_a_value_that_breaks_a_rule_is_named_with_its_line(
    project: Project, snapshot: Snapshot, line: str, given: str, remedy: str
) -> None:
    """U9: the field, the rule, the value given, and what to do"""
    message = fault(project, f"default_policy:\n  {line}\n")

    assert missing(message, "domains.yaml", "line 2", "default_policy", given) == []
    assert remedy in message.split(given, 1)[1]
    snapshot(message)


@pytest.mark.parametrize(
    ("text", "place", "datum"),
    [
        ("- a\n", "domains.yaml", "default_policy"),
        ("7\n", "domains.yaml", "default_policy"),
        ("qps: 1\n", "line 1", "default_policy"),
        ("shared: true\n", "line 1", "allowlist"),
        ("denilist: []\n", "line 1", "denylist"),
        ("default_policy: 3\n", "line 1", "default_policy"),
        ("allowlist: a.org\n", "line 1", "allowlist"),
        ("denylist: {a: b}\n", "line 1", "denylist"),
        ("denylist: [3]\n", "line 1", "denylist[0] = 3"),
        ("denylist:\n- domain: a.org\n  qps: 1\n", "line 3", 'denylist[0] "a.org": qps'),
        ("allowlist:\n- qps: 1\n", "line 2", "allowlist[0]: domain"),
        ("allowlist:\n- domain: https://example.com/\n", "line 2", "'example.com'"),
        ("allowlist:\n- domain: ''\n", "line 2", "domain = ''"),
        ("allowlist:\n- a.org\n- b.org\n- www.A.org\n", "line 4", "line 2"),
        (
            "allowlist:\n- {domain: a.org, strategy: sliding_window}\ndefault_policy: {burst: 300}\n",
            'line 2, allowlist[0] "a.org"',
            "burst = 300",
        ),
        ("preset: fast\n", "line 1", "preset = 'fast'"),
        ("a: 1\na: 2\n", "line 2", "line 1"),
        ("a: !!python/object:os.system x\n", "line 1", "python/object:os.system"),
        ("a: 1\n---\nb: 2\n", "line 2", ""),
        ("? [a]\n: b\n", "line 1", ""),
        ("a: &a [*a]\n", "line 1", "*a"),
        (b"a: 1\nb: \xff\n", "line 2", "UTF-8"),
        ("a: \0\n", "YAML", ""),
    ],
)
def test_a_file_of_another_shape_is_an_error_that_says_what_is_wanted(
    project: Project, snapshot: Snapshot, text: str | bytes, place: str, datum: str
) -> None:
    """U9"""
    message = fault(project, text)

    assert message.startswith("domains.yaml")
    assert missing(message, place, datum) == []
    if "YAML" not in message:  # the words of the YAML library differ
        snapshot(message)


@pytest.mark.parametrize("text", ["default_policy:\n\tqps: 1\n", "default_policy:\r\n  burst: 2\r\n  \tqps: 1: 2\r\n"])
def test_a_tab_in_yaml_is_told_as_one(project: Project, text: str) -> None:
    message = fault(project, text)

    assert missing(message, "domains.yaml", f"line {text.count(chr(10))}", "a tab") == []


def test_a_file_that_is_not_yaml_is_named_with_the_line(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    message = fault(project, "default_policy:\n  qps: [1, 2\nallowlist:\n")

    assert missing(message, "domains.yaml", "line 3", "YAML") == []
    snapshot(remedy_of(message))


def test_the_default_in_the_hint_is_the_one_that_would_hold(project: Project) -> None:
    """U9"""
    text = "default_policy: {qps: 0.25}\nallowlist: [{domain: a.org, qps: -1}]\n"

    by_file = fault(project, text)
    by_environment = fault(project, text, env={"CURTSY_QPS": "none"})

    assert "0.25" in by_file
    assert "none" in by_environment
    assert "0.8" not in by_file + by_environment


def test_all_faults_of_all_files_are_told_at_once(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    project.write_user("default_policy: {burst: 0}\n")
    lines = "".join(f"- domain: a{number}.org\n  qps: -1\n" for number in range(30))

    message = fault(project, f"stor: x\nallowlist:\n{lines}", env={"CURTSY_DELAY": "x"})

    lines_said = message.splitlines()
    assert len(lines_said) == 21
    assert missing(message, "burst = 0", "stor ", "store?", "CURTSY_DELAY", "delay = 'x'") == []
    assert "13" in lines_said[-1]
    snapshot(lines_said[-1])


@pytest.mark.parametrize(
    ("variable", "text", "given", "default"),
    [
        ("CURTSY_QPS", "fast", "qps = 'fast'", "0.8"),
        ("CRAWLER_GLOBAL_QPS", "-1", "global_qps = -1", "0.8"),
        ("CRAWLER_PER_DOMAIN_QPS", "nan", "qps = nan", "0.8"),
        ("RAG_RESPECT_ROBOTS_TXT", "perhaps", "respect_robots = 'perhaps'", "true"),
        ("RAG_ROBOTS_TXT_CACHE_TTL", "1 hour", "robots_ttl = '1 hour'", "3600"),
        ("CIRCUIT_BREAKER_ENABLED", "2", "breaker = 2", "true"),
        ("CIRCUIT_BREAKER_COOLDOWN", "0", "breaker_cooldown = 0", "300"),
        ("CURTSY_LOG_LEVEL", "loud", "log_level = 'loud'", "info"),
        ("CURTSY_PRESET", "fast", "preset = 'fast'", "gentle"),
    ],
)
def test_a_bad_variable_is_named_with_rule_and_value(
    project: Project, snapshot: Snapshot, variable: str, text: str, given: str, default: str
) -> None:
    """C7, Q7"""
    with pytest.raises(PolicyError) as caught:
        project.load(env={variable: text})

    message = str(caught.value)
    assert missing(message, variable, given) == []
    assert default in message.split(given, 1)[1]
    snapshot(message)


@pytest.mark.parametrize(
    ("arguments", "given", "remedy"),
    [
        pytest.param({"qps": -1}, "qps = -1", "0.8", id="negative"),
        pytest.param({"qps": True}, "qps = true", "0.8", id="boolean"),
        pytest.param({"burst": "2"}, "burst = '2'", "1", id="text"),
        pytest.param({"qsp": 1}, "qsp", "qps", id="misspelt"),
        pytest.param({"zzz": 1}, "zzz", "curtsy config show", id="unknown"),
        pytest.param({"default_policy": {"qps": 1}}, "default_policy", "", id="section"),
        pytest.param({"user_agent": None}, "user_agent", "", id="none"),
        pytest.param({"qps": object()}, "qps", "", id="object"),
        pytest.param({"allowlist": [{"domain": "a.org", "qps": 0}]}, "qps = 0", "", id="entry"),
    ],
)
def test_a_bad_argument_is_an_error(
    project: Project, snapshot: Snapshot, arguments: dict[str, Any], given: str, remedy: str
) -> None:
    """U9"""
    with pytest.raises(PolicyError) as caught:
        project.load(**arguments)

    message = str(caught.value)
    assert missing(message, "argument", given) == []
    assert remedy in message.split(given, 1)[1]
    snapshot(re.sub("0x[0-9a-f]+", "0x0", message))


def test_a_misspelt_argument_may_have_been_meant_for_one_that_is_no_setting(
    project: Project, snapshot: Snapshot
) -> None:
    """U9: all that is wrong is told at once"""
    with pytest.raises(PolicyError) as caught:
        project.load(other_arguments=("verify", "cookies"), verfy=1, zzz=2, qps=-1)

    misspelt, unknown, negative = str(caught.value).splitlines()
    assert missing(misspelt, "verfy", "verify") == []
    assert missing(unknown, "zzz", "curtsy config show", "help(curtsy.AsyncClient)") == []
    assert "qps = -1" in negative
    snapshot(unknown)


# --- Files that cannot be read


def test_a_named_file_that_does_not_exist_is_an_error(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    with pytest.raises(PolicyError, match=r"^nowhere\.yaml ") as caught:
        project.load(config="nowhere.yaml")
    with pytest.raises(PolicyError, match=r"^gone\.yaml "):
        project.load(env={"CURTSY_CONFIG": "gone.yaml"})

    snapshot(str(caught.value))


def test_a_directory_is_no_file(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    (project.directory / "curtsy.yaml").mkdir()

    with pytest.raises(PolicyError, match=r"^curtsy\.yaml ") as caught:
        project.load()

    snapshot(str(caught.value))


def test_a_link_to_nowhere_is_an_error_though_nobody_named_it(project: Project, snapshot: Snapshot) -> None:
    """U9: a denylist that was moved away must not be overlooked"""
    (project.directory / "curtsy.yaml").symlink_to("moved.yaml")

    with pytest.raises(PolicyError, match=r"^curtsy\.yaml ") as caught:
        project.load()

    snapshot(str(caught.value))


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


def test_a_pipe_is_no_file_and_is_not_waited_for(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    os.mkfifo(project.directory / "pipe.yaml")

    with pytest.raises(PolicyError, match=r"^pipe\.yaml ") as caught:
        project.load(config="pipe.yaml")

    snapshot(str(caught.value))


def test_a_file_that_may_not_be_read_is_an_error(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    path = project.write("qps: 1\n")
    path.chmod(0)
    if os.access(path, os.R_OK):
        path.unlink()  # the superuser reads anything: a link to itself is as unreadable
        path.symlink_to(path)

    with pytest.raises(PolicyError, match=r"^curtsy\.yaml ") as caught:
        load(config="curtsy.yaml", directory=project.directory, user_directory=project.user, env={})

    snapshot(remedy_of(str(caught.value)))


def test_a_path_with_a_nul_is_an_error(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    with pytest.raises(PolicyError, match=r"^a\0b\.yaml ") as caught:
        project.load(config="a\0b.yaml")

    snapshot(remedy_of(str(caught.value)))


def test_a_huge_file_is_not_read(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    path = project.directory / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(2**40)  # no disk is used: the file is one hole
    assert stat.S_ISREG(path.stat().st_mode)

    with pytest.raises(PolicyError, match=r"^huge\.yaml .*16,777,216 bytes") as caught:
        project.load(config="huge.yaml")

    snapshot(str(caught.value))


def test_a_bomb_of_aliases_does_not_go_off(project: Project, snapshot: Snapshot) -> None:
    """U16: a file of a few hundred bytes that stands for a billion values"""
    lines = ["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join(['*' + before] * 10)}]")

    with cpu_within(5):
        message = fault(project, "\n".join(lines))

    assert missing(message, "domains.yaml", "line 6", "1,000,000") == []
    snapshot(message)


def test_a_deep_file_is_refused_before_it_is_deep(project: Project, snapshot: Snapshot) -> None:
    """U16"""
    by_yaml = fault(project, "a: " + "[" * 100_000)
    by_json = fault(project, "[" * 100_000 + "]" * 100_000, "deep.json")

    assert "21" in by_yaml
    assert "deep.json" in by_json
    snapshot(by_yaml, "YAML")
    snapshot(by_json, "JSON")


# --- The JSON file


@pytest.mark.parametrize(
    ("text", "given", "remedy"),
    [
        ('{"version": "2.0", "domains": {}}', "version = '2.0'", '"version": "1.0"'),
        ('{"version": 1.0, "domains": {}}', "version = 1 ", '"version": "1.0"'),
        ('{"domains": {}}', "version", '"version": "1.0"'),
        ('{"version": "1.0", "domain": {}}', "domain ", "domains"),
        ('{"version": "1.0", "default": {}}', "default ", "default_config"),
    ],
)
def test_a_json_file_of_another_version_or_shape_is_an_error(
    project: Project, snapshot: Snapshot, text: str, given: str, remedy: str
) -> None:
    """L7"""
    path = project.write(text, "limits.json")

    message = fault(project, text, "limits.json")

    assert missing(message, "limits.json", given, remedy) == []
    with pytest.raises(PolicyError) as caught:
        load_limits(path)
    assert str(caught.value) == message.replace("limits.json", str(path))
    snapshot(message)


def test_all_faults_are_told_at_once(project: Project) -> None:
    """U9: what is wrong with one value hides nothing that is wrong with the others of its section"""
    text = (
        "default_policy:\n  qps: -1\n  pause: [5, 1]\n"
        "allowlist:\n- domain: a.org\n  qps: -2\n- domain: a.org\n"
        "- domain: b.org\n  timeout: -1\n  pause_min: 9\n  pause_max: 2\n"
        "- domain: c.org\n  pause_min: -1\n  pause_max: 1\n"
    )

    message = fault(project, text)

    expected = {
        "line 2,": ("default_policy", "qps = -1"),
        "line 3,": ("default_policy", "pause_min = 5"),
        "line 6,": ("allowlist[0]", "a.org", "qps = -2"),
        "line 7,": ("allowlist[1]", "a.org", "line 5"),
        "line 9,": ("allowlist[2]", "b.org", "timeout = -1"),
        "line 10,": ("allowlist[2]", "b.org", "pause_min = 9"),
        "line 13,": ("allowlist[3]", "c.org", "pause_min = -1"),
    }
    lines = message.splitlines()
    assert len(lines) == len(expected)
    for place, data in expected.items():
        (line,) = [each for each in lines if place in each]
        assert missing(line, *data) == []


def test_every_entry_of_the_json_file_is_checked_before_any_is_used(project: Project, snapshot: Snapshot) -> None:
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

    message = str(caught.value).replace(str(path), "limits.json")
    expected = [
        ('"https://bad.example"', "'bad.example'"),
        ('"a.example"', "requests_per_second = -1", "0.5"),
        ('"a.example"', "burst_capacity = 0", "1"),
        ('"b.example"', "requests_per_second = nan", "0.5"),
        ('"slow.example"', "requests_per_second = 0.000001", "1/86400", "0.5"),
        ('"c.example"', "burst_capacity = true", "1"),
        ('"d.example"', "burst ", "requests_per_second", "burst_capacity"),
        ('"e.example"',),
        ("domain = ''",),
    ]
    for line, data in zip(message.splitlines(), expected, strict=True):
        assert missing(line, "limits.json", "domains", *data) == []
    snapshot(message)


@pytest.mark.parametrize(
    ("text", "datum"),
    [
        pytest.param('{"version": "1.0",\n"a"}', "line 2", id="not JSON"),
        pytest.param('{"version": "1.0", "version": "1.0"}', '"version"', id="a key twice"),
        pytest.param("[]", "", id="a list"),
        pytest.param('{"version": "1.0", "domains": []}', "domains", id="a list of domains"),
        pytest.param('{"version": "1.0", "domains": {"a.org": {}, "A.org": {}}}', '"A.org"', id="a domain twice"),
        pytest.param(f'{{"version": {"9" * 5000}}}', "", id="a long number"),
    ],
)
def test_a_file_that_is_not_json_is_an_error(project: Project, snapshot: Snapshot, text: str, datum: str) -> None:
    """L7"""
    message = fault(project, text, "limits.json")

    assert missing(message, "limits.json", datum) == []
    with pytest.raises(PolicyError):
        load_limits(project.directory / "limits.json")
    snapshot(remedy_of(message) if "JSON" in message else message)


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
