"""`curtsy config` and `curtsy doctor`: the settings, and whether everything is in place."""

from __future__ import annotations

import re
from pathlib import Path

from curtsy.core.host import fresh
from curtsy.settings import load
from curtsy.settings.general import names
from curtsy.settings.template import template
from tests.cli.crawling import line_with
from tests.cli.documented import FIELDS
from tests.cli.shell import Shell
from tests.support.snapshot import Snapshot


def test_what_is_shown_can_be_read_back(shell: Shell) -> None:
    """U9: `config show` writes what a file would have; `--json` has every setting with its origin"""
    shell = shell.unhurried()
    shown, as_json = shell.cold("config", "show"), shell("config", "show", "--json").json
    shell.settle(shown.out)

    done = shell("config", "check", "--json")

    assert (done.code, done.json["warnings"], set(done.json)) == (0, [], FIELDS["config check"])
    assert set(as_json) == set(names("general", "policy")) - {"pause"}
    assert all(set(each) == {"value", "origin"} for each in as_json.values())
    assert (as_json["qps"]["value"], as_json["qps"]["origin"]) == (0.8, "built-in")


def test_a_misspelt_variable_is_told_where_the_settings_are_shown(shell: Shell, snapshot: Snapshot) -> None:
    """C7: beside the settings, which it is not among"""
    for form in ((), ("--json",), ("--origin",)):
        done = shell("config", "show", *form, CURTSY_USERAGENT="x")

        assert done.code == 0
        [line] = [line for line in done.err.splitlines() if "CURTSY_USERAGENT" in line]
        assert "CURTSY_USER_AGENT" in line
        snapshot(line)


def test_the_origin_of_each_value_is_shown(shell: Shell) -> None:
    """U9, C7: file and line, environment, preset, command line; secrets in the store's URL are masked"""
    shell.settle("allowlist:\n  - domain: example.org\n    max_pages_per_day: 5\n")
    options = ("--preset", "broad", "--store", "redis://user:s3cret@host/0")

    done = shell.unhurried()(*options, "config", "show", "--origin", "example.org", CURTSY_TIMEOUT="9")

    rows = {line.split()[0]: re.split(r"\s{2,}", line)[1:] for line in done.out.splitlines()}
    assert rows["max_pages_per_day"] == ["5", "curtsy.yaml:3"]
    assert rows["timeout"] == ["9", "environment variable CURTSY_TIMEOUT"]
    assert rows["global_qps"] == ["none", "preset broad"]
    assert rows["store"] == ['"redis://***@host/0"', "command line"]
    assert "s3cret" not in done.out + done.err


def test_bad_settings_end_every_command_with_the_same_code_and_their_place(shell: Shell, snapshot: Snapshot) -> None:
    """U9, conventions: 78, and the message names file, line, rule and value"""
    shell.settle("default_policy:\n  qps: -1\n  puase: 3\n")

    ends = [shell("config", "check"), shell("get", "https://example.org/"), shell("doctor", "--json")]

    assert [done.code for done in ends] == [78, 78, 78]
    assert all("Traceback" not in done.err for done in ends)
    first, second = ends[0].err.splitlines()
    assert all(part in first for part in ("curtsy.yaml", "line 2", "qps = -1"))
    assert all(part in second for part in ("curtsy.yaml", "line 3", "puase", "pause"))
    snapshot(ends[0].err)
    assert (ends[1].out, ends[2].json["ok"]) == ("", False)


def test_a_file_to_begin_with_is_written_once(shell: Shell) -> None:
    """U9: `config init`"""
    first, second = shell("config", "init"), shell("config", "init")
    printed = shell("config", "init", "-")
    check = shell("config", "check")

    assert (first.code, first.out, second.code) == (0, "", 1)
    assert "--force" in second.err
    assert printed.out == template() == (shell.project / "curtsy.yaml").read_text()
    assert (check.code, check.out.strip()) == (0, str(shell.project / "curtsy.yaml"))
    for name in ("check", "init"):  # neither needs to be given one
        assert shell("config", name, "--help").out.startswith(f"Usage: curtsy config {name} [OPTIONS] [FILE]\n")


def test_the_file_to_begin_with_shows_the_defaults(tmp_path: Path) -> None:
    """U9: with every # taken away it is valid, and changes nothing but what is an example"""
    text = re.sub(r"^# (?=( *- | *)[a-z_0-9]+:|  - )", "", template(), flags=re.MULTILINE)
    (tmp_path / "curtsy.yaml").write_text(text)

    settings = load(directory=tmp_path, user_directory=tmp_path / "user", env={})
    defaults = load(directory=tmp_path / "none", user_directory=tmp_path / "user", env={})

    written = {name for name in names("general", "policy") if re.search(rf"^# +{name}:", template(), re.MULTILINE)}
    assert len(written) > 20
    for name in written - {"user_agent", "domain_category"}:
        assert settings.value(None, name) == defaults.value(None, name), name
    assert settings.policies.of("de.wikipedia.org").max_requests_per_day == 500
    assert settings.policies.of("private.example.net").denied


def test_the_doctor_looks_at_everything(shell: Shell) -> None:
    """issue: Python, versions, store reachable and writable, clock, user agent, cache folder"""
    agent = "testbot/1.0 (+https://example.org/bot)"
    done, people = shell("doctor", "--json", "--user-agent", agent), shell("doctor", COLUMNS="40")

    findings = {each["name"]: each for each in done.json["findings"]}
    assert (done.code, done.err, set(done.json)) == (0, "", FIELDS["doctor"])
    assert {"curtsy", "libraries", "settings", "user agent", "store", "clock", "cache"} <= set(findings)
    assert all(set(each) == {"name", "state", "says", "advice"} for each in findings.values())
    assert (findings["store"]["state"], findings["user agent"]["state"]) == ("yes", "yes")
    assert people.code == 0
    assert "!  user agent" in people.out
    assert max(map(len, people.out.splitlines())) <= 40


def test_the_doctor_names_proxies_without_their_passwords(shell: Shell) -> None:
    """F62: also one without a scheme, and one that cannot be used"""
    proxies = {"http_proxy": "us:hunter2@127.0.0.1:3128", "HTTPS_PROXY": "socks5://us:hunter2@127.0.0.1:1080"}

    done = shell("doctor", "--json", **proxies)

    found = [each for each in done.json["findings"] if each["name"] == "proxy"]
    assert sorted((each["state"], each["says"][:38]) for each in found) == [
        ("no", "HTTPS_PROXY = 'socks5://***@127.0.0.1:"),
        ("yes", "HTTP_PROXY is http://***@127.0.0.1:312"),
    ]
    assert "hunter2" not in done.out + done.err


def test_the_doctor_names_the_file_for_the_user_agent_if_there_is_one(shell: Shell, snapshot: Snapshot) -> None:
    """`config init` would refuse to write it again"""
    without = line_with(shell("doctor", CURTSY_USER_AGENT=None).out, "Set your own")
    shell("config", "init")

    after = line_with(shell("doctor", CURTSY_USER_AGENT=None, COLUMNS="300").out, "Set your own")

    assert "config init" in without
    assert "config init" not in after
    assert after.endswith(f"{shell.project / 'curtsy.yaml'}")
    snapshot(without, "without a file")


def test_the_doctor_is_brief_unless_asked_for_more(shell: Shell, snapshot: Snapshot) -> None:
    """issue: as a health check it neither lists what is well nor counts hosts, which may be millions"""
    agent = ("--user-agent", "testbot/1.0 (+https://example.org/bot)")
    with shell.store() as store:
        for number in range(3):
            store.update(f"host:h{number}.example.org", lambda host, now: (fresh(now), None))

    brief, whole = shell("doctor", *agent), shell("doctor", "--verbose", *agent)
    odd = shell("doctor", "--user-agent", "bot/1.0")
    as_json = [shell("doctor", "--json", *more, *agent).json["findings"] for more in ((), ("-v",))]

    assert (brief.code, brief.out, whole.code) == (0, "", 0)
    assert "--verbose" in brief.err
    assert "3 hosts" in whole.out
    assert "--verbose" not in whole.err
    assert odd.code == 0
    assert [line[:13] for line in odd.out.splitlines() if not line.startswith(" ")] == ["!  user agent"]
    assert re.findall(r"\d+", odd.err)[:2] == ["0", "1"]
    for name, done in (("brief", brief), ("whole", whole), ("odd", odd)):
        snapshot(done.err, name)
    assert ["3 hosts" in str(findings) for findings in as_json] == [False, True]
    assert len(as_json[0]) == len(as_json[1])


def test_the_doctor_changes_nothing(shell: Shell, snapshot: Snapshot) -> None:
    """issue: what is not there yet is made by whoever needs it, and may be in a place where it cannot be"""
    new, taken = shell.home / "new", shell.home / "taken"
    taken.write_text("a file where a directory should be")

    fine = shell("doctor", "--json", "--store", f"sqlite:///{new}/a/state", CURTSY_CACHE_DIR=f"{new}/cache")
    bad = shell("doctor", "--json", "--store", f"sqlite:///{taken}/state", CURTSY_CACHE_DIR=f"{taken}/cache")
    shell("doctor")

    findings = [{each["name"]: each for each in done.json["findings"]} for done in (fine, bad)]
    assert (fine.code, bad.code) == (0, 1)
    assert [findings[0][name]["state"] for name in ("store", "cache")] == ["yes", "yes"]
    for name in ("store", "cache"):
        assert str(new) in findings[0][name]["says"]
        snapshot(findings[0][name]["says"], name)
    assert [findings[1][name]["state"] for name in ("store", "cache")] == ["no", "no"]
    assert sorted(path.name for path in shell.home.iterdir()) == ["project", "taken"]


def test_the_doctor_finds_what_is_out_of_order(shell: Shell, snapshot: Snapshot) -> None:
    """U16: directories that cannot be used, a store that does not answer, a user agent without a contact"""
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        Path(shell.env[name]).write_text("a file where a directory should be")

    done = shell("doctor", "--json", "--user-agent", "bot/1.0")
    redis = shell("doctor", "--json", "--store", "redis://:s3cret@127.0.0.1:1/0")

    findings = {each["name"]: each for each in done.json["findings"]}
    assert (done.code, done.json["ok"]) == (1, False)
    assert [findings[name]["state"] for name in ("store", "cache", "user agent")] == ["no", "no", "wait"]
    assert "bot/1.0" in findings["user agent"]["says"]
    snapshot(findings["user agent"]["says"])
    assert redis.code == 1
    [store] = [each for each in redis.json["findings"] if each["name"] == "store"]
    assert store["state"] == "no"
    assert "127.0.0.1:1" in store["says"]
    assert "s3cret" not in redis.out + redis.err


def test_the_doctor_says_what_happens_while_the_store_is_out_by_the_outage_that_applies(
    shell: Shell, snapshot: Snapshot
) -> None:
    """C18: `wait` on a server, `alone` for a file, unless the settings say otherwise"""
    server, folder = "redis://127.0.0.1:1/0", f"sqlite:///{shell.home}"
    cases = [(server, None), (server, "alone"), (folder, None), (folder, "wait")]

    advice = []
    for store, outage in cases:
        findings = shell("doctor", "--json", CURTSY_STORE=store, CURTSY_OUTAGE=outage).json["findings"]
        advice += [each["advice"] for each in findings if each["name"] == "store"]

    assert [each == advice[0] for each in advice] == [True, False, False, True]
    assert advice[1] == advice[2]
    snapshot(advice[0], "wait")
    snapshot(advice[1], "alone")
