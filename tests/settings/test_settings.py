"""Settings: where they come from, which wins, and what they become."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest

from curtsy import __version__
from curtsy.core.errors import PolicyError
from curtsy.core.policy import LimitConfig, Policy
from curtsy.core.setting import settings_of
from curtsy.settings import Settings, load, load_limits, names_contact
from curtsy.settings.general import ALIASES, Key, keys, names
from tests.support.said import missing
from tests.support.snapshot import Snapshot

ROOT = Path(__file__).parents[2]


class Project:
    """A project's directory, and a user's, with nothing in them but what a test writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "project"
        self.user = directory / "user"
        self.directory.mkdir()
        self.user.mkdir()

    def write(self, text: str, name: str = "curtsy.yaml") -> Path:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def write_user(self, text: str) -> Path:
        path = self.user / "curtsy.yaml"
        path.write_text(text)
        return path

    def load(self, *, env: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
        return load(env=env or {}, directory=self.directory, user_directory=self.user, **arguments)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# --- Defaults and presets


def test_without_any_settings_the_documents_defaults_hold(project: Project) -> None:
    """B1, C3, C10, P1, Q1, Q4, R10"""
    settings = project.load()
    policy = settings.policies.of("example.org")

    assert (policy.qps, policy.burst, policy.pause_min, policy.pause_max, policy.concurrency) == (0.8, 1, 1.5, 5.5, 1)
    assert (policy.max_requests_per_day, policy.max_pages_per_day, policy.breaker_cooldown) == (200, 100, 300)
    assert policy.respect_robots
    assert (settings.global_qps, settings.global_burst, settings.preset) == (0.8, 1, "gentle")
    assert (settings.store, settings.cache_dir, settings.cache_mode) == (None, None, "normal")
    assert (settings.log_level, settings.stats_every) == ("info", 60)
    assert settings.user_agent == f"curtsy/{__version__} (+https://curtsy.example/)"
    assert settings.warnings == ()
    assert settings.files == ()


def test_every_field_of_a_policy_can_be_set_in_a_file() -> None:
    """U9"""
    fields = set(names("policy")) - {"pause"}

    assert fields == set(settings_of(Policy)) - {"key", "denied"}


def test_no_setting_is_for_a_time_of_day_or_a_kind_of_day() -> None:
    """B14: no slots, no night or holiday mode; a day as a whole has a budget, and a time zone"""
    word = re.compile(r"hour|night|noon|midnight|morning|evening|weekday|weekend|holiday|slot|schedule|daytime")
    described = {key.name: f"{key.name} {key.range.unit} {get_args(key.kind)}".lower() for key in keys().values()}
    of_days = [name for name, text in described.items() if re.search(r"(?<![a-z])days?(?![a-z])", text)]

    assert [name for name, text in described.items() if word.search(text)] == []
    assert of_days == ["max_requests_per_day", "max_pages_per_day"]


def test_broad_lifts_only_the_global_limit(project: Project) -> None:
    """C8"""
    settings = project.load(preset="broad")

    assert settings.global_qps is None
    assert all(getattr(settings.policies.default, name) == getattr(Policy(), name) for name in settings_of(Policy))


def test_own_has_no_pauses_and_no_budget_and_sixteen_at_a_time_but_obeys_robots(project: Project) -> None:
    """C8, C12"""
    settings = project.load(preset="own")
    policy = settings.policies.of("example.org")

    assert (settings.global_qps, policy.qps, policy.pause_min, policy.pause_max) == (None, None, 0, 0)
    assert (policy.concurrency, policy.max_requests_per_day, policy.max_pages_per_day) == (16, 0, 0)
    assert policy.respect_robots
    assert not policy.allow_private


@pytest.mark.parametrize("where", ["user", "project", "environment"])
def test_a_preset_can_be_chosen_in_a_file_and_in_the_environment(project: Project, where: str) -> None:
    """C8"""
    if where == "user":
        project.write_user("preset: own\n")
    if where == "project":
        project.write("preset: own\n")

    settings = project.load(env={"CURTSY_PRESET": "own"} if where == "environment" else {})

    assert settings.preset == "own"
    assert settings.policies.default.concurrency == 16


# --- Precedence

LAYERS = ["built-in", "preset own", "user", "project", "environment variable CURTSY_CONCURRENCY", "argument"]
PAIRS = [pair for size in (1, 2, 6) for pair in itertools.combinations(range(6), size)]


@pytest.mark.parametrize("chosen", PAIRS, ids=lambda chosen: "-".join(LAYERS[each].split()[0] for each in chosen))
def test_of_two_sources_the_higher_one_wins(project: Project, chosen: tuple[int, ...]) -> None:
    """C7, U9: built-in, preset, user file, project file, environment, argument"""
    user, file = project.user / "curtsy.yaml", "curtsy.yaml"
    if 2 in chosen:
        project.write_user("default_policy:\n  concurrency: 2\n")
    if 3 in chosen:
        project.write("\ndefault_policy:\n  concurrency: 3\n")
    env = {"CURTSY_CONCURRENCY": "4"} if 4 in chosen else {}
    arguments: dict[str, Any] = {"concurrency": 5} if 5 in chosen else {}
    origins = ["built-in", "preset own", f"{user}:2", f"{file}:3", LAYERS[4], "argument"]

    settings = project.load(env=env, preset="own" if 1 in chosen else None, **arguments)

    highest = max(chosen)
    assert settings.policies.of("example.org").concurrency == (1, 16, 2, 3, 4, 5)[highest]
    assert settings.origin("example.org", "concurrency") == origins[highest]
    assert settings.origin(None, "concurrency") == origins[highest]


@pytest.mark.parametrize("chosen", PAIRS, ids=lambda chosen: "-".join(LAYERS[each].split()[0] for each in chosen))
def test_general_settings_have_the_same_order(project: Project, chosen: tuple[int, ...]) -> None:
    """C7, C8"""
    if 2 in chosen:
        project.write_user("global_qps: 2\n")
    if 3 in chosen:
        project.write("global_qps: 3\n")
    env = {"CRAWLER_GLOBAL_QPS": "4"} if 4 in chosen else {}
    arguments: dict[str, Any] = {"global_qps": 5} if 5 in chosen else {}

    settings = project.load(env=env, preset="broad" if 1 in chosen else None, **arguments)

    assert settings.global_qps == (0.8, None, 2, 3, 4, 5)[max(chosen)]
    assert settings.policies.overall.qps == settings.global_qps


def test_sources_are_joined_key_by_key(project: Project) -> None:
    """U9"""
    project.write_user("default_policy: {qps: 0.1, burst: 2}\n")
    project.write("default_policy: {burst: 3}\n")

    default = project.load(env={"CURTSY_DELAY": "7"}).policies.default

    assert (default.qps, default.burst, default.delay) == (0.1, 3, 7)


def test_both_files_of_a_project_are_read(project: Project) -> None:
    """U9: a denylist must not be overlooked because there is another file"""
    project.write("denylist: [ads.example.com]\ndefault_policy: {qps: 0.1, burst: 2}\n", "config/domains.yaml")
    project.write("default_policy: {qps: 0.2}\n")

    policies = project.load().policies

    assert policies.of("ads.example.com").denied
    assert (policies.default.qps, policies.default.burst) == (0.2, 2)


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_named_file_takes_the_place_of_the_projects(project: Project, by: str) -> None:
    """U9"""
    project.write("default_policy: {qps: 0.1}\n")
    other = project.write("default_policy: {burst: 2}\n", "other.yaml")

    if by == "argument":
        settings = project.load(config="other.yaml")
    else:
        settings = project.load(env={"CURTSY_CONFIG": str(other)})

    assert (settings.policies.default.qps, settings.policies.default.burst) == (0.8, 2)
    assert settings.files == (other,)


def test_a_file_that_is_named_by_the_program_wins_over_the_variable(project: Project) -> None:
    """U9: of the two only one is read, and need be there"""
    ours = project.write("default_policy: {burst: 2}\n", "ours.yaml")
    project.write("default_policy: {burst: 3, qps: 0.3}\n", "theirs.yaml")

    for theirs in ("theirs.yaml", "nowhere.yaml"):
        settings = project.load(config="ours.yaml", env={"CURTSY_CONFIG": theirs})

        assert (settings.policies.default.qps, settings.policies.default.burst) == (0.8, 2)
        assert settings.files == (ours,)


def test_the_working_directory_and_the_real_environment_are_used_if_nothing_else_is_said(project: Project) -> None:
    """C7: a real process"""
    project.write("allowlist: [{domain: example.org, qps: 0.25}]\n", "config/domains.yaml")
    code = (
        "from curtsy.settings import load; s = load(); print(s.policies.of('example.org').qps, s.global_qps, s.files)"
    )
    env = {**os.environ, "CRAWLER_GLOBAL_QPS": "0.5", "XDG_CONFIG_HOME": str(project.user), "HOME": str(project.user)}

    out = subprocess.run(
        [sys.executable, "-c", code], cwd=project.directory, env=env, capture_output=True, text=True, check=True
    )

    assert out.stdout.startswith("0.25 0.5 (")
    assert "domains.yaml" in out.stdout


# --- The file


def test_the_shipped_example_has_the_documents_entry_and_changes_nothing_else(project: Project) -> None:
    """B11, P2"""
    settings = project.load(config=ROOT / "config" / "domains.yaml")
    wikipedia = settings.policies.of("de.wikipedia.org")
    default = settings.policies.default

    assert wikipedia.domain_category == "trusted"
    assert (wikipedia.max_requests_per_day, wikipedia.max_pages_per_day) == (500, 250)
    assert all(getattr(default, name) == getattr(Policy(), name) for name in settings_of(Policy))


def test_either_limit_can_be_overridden_alone(project: Project) -> None:
    """B3"""
    project.write("""
default_policy: {max_requests_per_day: 50, max_pages_per_day: 20}
allowlist:
  - {domain: a.example, max_requests_per_day: 7}
  - {domain: b.example, max_pages_per_day: 3}
""")

    policies = project.load().policies

    assert (policies.of("x.a.example").max_requests_per_day, policies.of("x.a.example").max_pages_per_day) == (7, 20)
    assert (policies.of("b.example").max_requests_per_day, policies.of("b.example").max_pages_per_day) == (50, 3)
    assert policies.of("c.example").max_requests_per_day == 50


def test_the_most_specific_entry_wins_and_falls_back_to_the_default_policy_only(project: Project) -> None:
    """U9, C6"""
    lists = ["{domain: example.org, qps: 0.1, burst: 5}", "{domain: api.example.org, burst: 3}"]
    for order in (lists, lists[::-1]):
        project.write(f"allowlist: [{', '.join(order)}]\n")

        policies = project.load().policies

        assert (policies.of("a.b.example.org").qps, policies.of("a.b.example.org").burst) == (0.1, 5)
        assert (policies.of("v1.api.example.org").qps, policies.of("v1.api.example.org").burst) == (0.8, 3)


def test_hosts_of_a_shared_entry_have_one_record(project: Project) -> None:
    """C6"""
    project.write("allowlist: [{domain: www.Example.org, shared: true}, {domain: own.example.org}]\n")

    policies = project.load().policies

    assert policies.of("a.example.org").key_for("a.example.org") == "host:example.org"
    assert policies.of("b.example.org").key_for("b.example.org") == "host:example.org"
    assert policies.of("own.example.org").key_for("own.example.org") == "host:own.example.org"
    assert policies.of("other.example").key_for("other.example") == "host:other.example"


@pytest.mark.parametrize("entry", ["ads.example.org", "{domain: ads.example.org}"])
def test_nothing_is_sent_to_a_denied_domain_or_below(project: Project, entry: str) -> None:
    """U9"""
    project.write(f"denylist: [{entry}]\n")

    policies = project.load().policies

    assert policies.of("ads.example.org").denied
    assert policies.of("x.ads.example.org").denied
    assert not policies.of("example.org").denied


def test_deny_wins_on_the_same_domain_and_the_more_specific_entry_otherwise(project: Project) -> None:
    """U9"""
    project.write("""
allowlist: [example.org, {domain: api.example.com}, {domain: example.net}]
denylist: [www.example.org, example.com, bad.example.net]
""")

    policies = project.load().policies

    denied = [host for host in ("example.org", "example.com", "bad.example.net") if policies.of(host).denied]
    assert denied == ["example.org", "example.com", "bad.example.net"]
    assert not policies.of("api.example.com").denied
    assert not policies.of("good.example.net").denied


def test_a_domain_denied_by_the_user_stays_denied_whatever_the_project_allows(project: Project) -> None:
    """U9"""
    project.write_user("denylist: [example.org]\n")
    project.write("allowlist: [{domain: example.org, qps: 2}]\n")

    settings = project.load()

    assert settings.policies.of("example.org").denied
    assert settings.origin("www.example.org", "denied") == f"{project.user / 'curtsy.yaml'}:1"
    assert settings.value("example.org", "denied") is True


def test_one_domain_in_two_files_is_joined_key_by_key(project: Project) -> None:
    """B3, U9"""
    project.write_user("allowlist: [{domain: example.org, qps: 0.1, burst: 2}]\n")
    project.write("allowlist: [{domain: example.org, burst: 3}]\n")

    settings = project.load()

    assert (settings.policies.of("example.org").qps, settings.policies.of("example.org").burst) == (0.1, 3)
    assert settings.origin("example.org", "qps").startswith(str(project.user))
    assert settings.origin("example.org", "burst") == "curtsy.yaml:1"


def test_a_domain_that_is_not_limited_has_no_limit_but_obeys_robots(project: Project) -> None:
    """Q12, C12, C13"""
    project.write(
        "allowlist: [{domain: example.org, limited: false, concurrency: 4}, {domain: a.example, limited: true}]\n"
    )

    policies = project.load().policies
    free = policies.of("example.org")

    assert (free.qps, free.pause_max, free.delay, free.max_requests_per_day, free.max_pages_per_day) == (
        None,
        0,
        0,
        0,
        0,
    )
    assert not free.breaker
    assert not free.adapt
    assert free.concurrency == 4
    assert free.respect_robots
    assert policies.of("a.example").qps == 0.8


LIMIT_KEYS = ("qps", "pause_max", "concurrency", "max_requests_per_day", "breaker")
LIMITED = (0.8, 5.5, 1, 200, True)
FREE = (None, 0, None, 0, False)


@pytest.mark.parametrize(
    ("user", "ours", "expected"),
    [
        ("limited: false", "limited: true", LIMITED),
        ("limited: true", "limited: false", FREE),
        ("limited: false", "burst: 2", FREE),
        ("limited: false, qps: 5", "limited: true", (5, *LIMITED[1:])),
        ("limited: false, breaker: false", "limited: true, concurrency: 2", (0.8, 5.5, 2, 200, False)),
        ("qps: 5, concurrency: 3", "limited: false", FREE),
        ("qps: 5, concurrency: 3", "limited: false, concurrency: 4", (*FREE[:2], 4, *FREE[3:])),
        ("limited: false, qps: 5", "limited: false", FREE),
        ("limited: false, pause: [1, 2]", "qps: 4", (4, 2, *FREE[2:])),
        ("qps: 5", "limited: true", (5, *LIMITED[1:])),
    ],
)
def test_of_two_files_the_higher_one_says_whether_a_domain_is_limited(
    project: Project, user: str, ours: str, expected: tuple[object, ...]
) -> None:
    """Q12, U9: what the lower `limited` stood for goes with it, and what else its file says stays"""
    project.write_user(f"allowlist: [{{domain: example.org, {user}}}]\n")
    project.write(f"allowlist: [{{domain: example.org, {ours}}}]\n")

    settings = project.load()

    assert tuple(settings.value("example.org", name) for name in LIMIT_KEYS) == expected


def test_what_was_below_a_domain_that_was_not_limited_comes_back_with_its_place(project: Project) -> None:
    """Q12, U9: in three files and an argument, each above the one before"""
    users = project.write_user("allowlist: [{domain: example.org, qps: 5, concurrency: 3}]\n")
    project.write("\nallowlist: [{domain: example.org, limited: false, delay: 7}]\n", "config/domains.yaml")
    project.write("allowlist: [{domain: example.org, concurrency: 2}]\n")
    argument = [{"domain": "example.org", "limited": True}]
    shown = ("qps", "concurrency", "delay", "breaker", "pause")

    free, limited = project.load(), project.load(allowlist=argument)

    assert [free.value("example.org", name) for name in shown] == [None, 2, 7, False, [0, 0]]
    assert [free.origin("example.org", name) for name in shown] == [
        "config/domains.yaml:2", "curtsy.yaml:1", "config/domains.yaml:2", "config/domains.yaml:2",
        "config/domains.yaml:2",
    ]  # fmt: skip
    assert [limited.value("example.org", name) for name in shown] == [5, 2, 7, True, [1.5, 5.5]]
    assert [limited.origin("example.org", name) for name in shown] == [
        f"{users}:1", "curtsy.yaml:1", "config/domains.yaml:2", "built-in", "built-in",
    ]  # fmt: skip


def test_paths_can_be_refused_and_private_addresses_opened_for_one_domain(project: Project) -> None:
    """U9, U2"""
    project.write("allowlist: [{domain: example.org, deny_paths: [/private, '*.pdf$'], allow_private: yes}]\n")

    policies = project.load().policies

    assert policies.of("example.org").deny_paths == ("/private", "*.pdf$")
    assert policies.of("example.org").allow_private
    assert policies.of("example.com").deny_paths == ()


def test_a_pause_is_a_pair_or_two_keys(project: Project) -> None:
    """P1"""
    project.write("default_policy: {pause: [2, 3]}\nallowlist: [{domain: a.example, pause_max: 9}]\n")

    policies = project.load().policies

    assert (policies.default.pause_min, policies.default.pause_max) == (2, 3)
    assert (policies.of("a.example").pause_min, policies.of("a.example").pause_max) == (2, 9)


@pytest.mark.parametrize("word", ["none", "None", "null", "~", ""])
def test_no_limit_is_spelled_none(project: Project, word: str) -> None:
    """U9: none means no limit, but in budgets it is 0"""
    project.write(f"global_qps: {word}\ndefault_policy:\n  qps: {word}\n  concurrency: {word}\n  max_body: {word}\n")

    settings = project.load()

    default = settings.policies.default
    assert (settings.global_qps, default.qps, default.concurrency, default.max_body) == (None, None, None, None)


def test_the_day_can_change_in_any_time_zone(project: Project) -> None:
    """B6"""
    project.write("default_policy: {timezone: Asia/Tokyo}\nallowlist: [{domain: a.example, timezone: local}]\n")

    settings = project.load()

    assert settings.policies.default.timezone == ZoneInfo("Asia/Tokyo")
    assert settings.policies.of("a.example").timezone is None
    assert settings.origin(None, "timezone") == "curtsy.yaml:1"


def test_words_are_read_as_yaml_1_2_reads_them(project: Project) -> None:
    """U9: Norway is a country, and 1e1 is ten"""
    project.write("allowlist:\n  - domain: no\n    domain_category: 12:30\n    delay: 1e1\n    respect_robots: off\n")

    policy = project.load().policies.of("no")

    assert (policy.domain_category, policy.delay, policy.respect_robots) == ("12:30", 10, False)


def test_aliases_of_yaml_can_be_used(project: Project) -> None:
    """U9"""
    project.write(
        "allowlist:\n  - {domain: a.example, deny_paths: &paths [/x]}\n  - {domain: b.example, deny_paths: *paths}\n"
    )

    assert project.load().policies.of("b.example").deny_paths == ("/x",)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "default_policy:\nallowlist:\ndenylist:\n", "\ufeff{}\n"])
def test_an_empty_file_changes_nothing(project: Project, text: str) -> None:
    """U9"""
    project.write(text)

    assert project.load().policies.of("example.org").qps == 0.8


def test_entries_can_be_given_by_the_program_itself(project: Project) -> None:
    """U9"""
    settings = project.load(allowlist=[{"domain": "a.example", "qps": 2}, "b.example"], denylist=("c.example",))

    assert settings.policies.of("a.example").qps == 2
    assert settings.policies.of("c.example").denied
    assert settings.origin("a.example", "qps") == "argument"


def test_an_entrys_own_value_stands_against_environment_and_argument(project: Project) -> None:
    """U9: they change the default policy"""
    project.write("allowlist: [{domain: a.example, qps: 0.1}]\n")

    policies = project.load(env={"CURTSY_QPS": "3"}, qps=4).policies

    assert (policies.of("a.example").qps, policies.of("b.example").qps) == (0.1, 4)


# --- Environment

EXAMPLES = {
    "pause": "1,2",
    "pause_max": "9.5",
    "deny_paths": "/a, /b*",
    "timezone": "Europe/Berlin",
    "user_agent": "bot/1.0 (a@example.org)",
}
EXPECTED = {"pause": [1, 2], "deny_paths": ("/a", "/b*"), "timezone": ZoneInfo("Europe/Berlin")}


def example_of(key: Key) -> tuple[str, Any]:
    """A text for a variable that differs from the default, and what it becomes."""
    if key.name in EXAMPLES:
        text = EXAMPLES[key.name]
        return text, EXPECTED.get(key.name, float(text) if key.kind is float else text)
    if key.kind is bool:
        return str(not key.default).upper(), not key.default
    if key.kind is float:
        return "0.75", 0.75
    if key.kind is int:
        return "2048", 2048
    if key.kind in (str, Path):
        return "memory:", key.kind("memory:")
    return get_args(key.kind)[-1], get_args(key.kind)[-1]


@pytest.mark.parametrize("key", [key for key in keys().values() if key.variable], ids=lambda key: key.name)
def test_every_setting_has_a_variable(project: Project, key: Key) -> None:
    """C7"""
    text, expected = example_of(key)

    settings = project.load(env={f"CURTSY_{key.name.upper()}": text})

    assert settings.value(None, key.name) == expected
    assert settings.value(None, key.name) != key.default
    assert settings.origin(None, key.name) == f"environment variable CURTSY_{key.name.upper()}"


@pytest.mark.parametrize(
    ("alias", "text", "key", "expected"),
    [
        ("CRAWLER_GLOBAL_QPS", "0.5", "global_qps", 0.5),
        ("CRAWLER_PER_DOMAIN_QPS", "0.5", "qps", 0.5),
        ("RAG_USER_AGENT", "AIAssistantBot/1.0", "user_agent", "AIAssistantBot/1.0"),
        ("RAG_RESPECT_ROBOTS_TXT", "False", "respect_robots", False),
        ("RAG_ROBOTS_TXT_CACHE_TTL", "60", "robots_ttl", 60),
        ("CIRCUIT_BREAKER_ENABLED", "0", "breaker", False),
        ("CIRCUIT_BREAKER_COOLDOWN", "600", "breaker_cooldown", 600),
        ("LOG_LEVEL", "WARNING", "log_level", "warn"),
    ],
)
def test_the_documents_names_are_aliases(project: Project, alias: str, text: str, key: str, expected: object) -> None:
    """C7, Q7, R10"""
    assert alias in ALIASES

    settings = project.load(env={alias: text})
    both = project.load(env={alias: "0.9", f"CURTSY_{key.upper()}": text})

    assert settings.value(None, key) == expected
    assert settings.origin(None, key) == f"environment variable {alias}"
    assert both.value(None, key) == expected  # CURTSY_… wins


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("Yes", True), ("on", True), ("1", True), ("no", False)]
)
def test_true_has_several_names_in_the_environment(project: Project, text: str, expected: bool) -> None:
    """C7"""
    assert project.load(env={"CURTSY_ALLOW_PRIVATE": text}).policies.default.allow_private is expected


def test_an_empty_variable_is_not_set(project: Project) -> None:
    """C7"""
    for nothing in ("", "  ", "\r\n"):
        env = {"CURTSY_QPS": nothing, "CRAWLER_PER_DOMAIN_QPS": "0.5", "CURTSY_CONFIG": nothing}

        assert project.load(env=env).policies.default.qps == 0.5


@pytest.mark.parametrize("key", [key for key in keys().values() if key.variable], ids=lambda key: key.name)
def test_white_space_around_a_variable_is_nothing(project: Project, key: Key) -> None:
    """C7"""
    text, expected = example_of(key)

    settings = project.load(env={f"CURTSY_{key.name.upper()}": f" \t{text} \r\n"})

    assert settings.value(None, key.name) == expected


def test_white_space_around_the_name_of_a_file_is_nothing(project: Project) -> None:
    """C7"""
    project.write("default_policy: {burst: 2}\n", "other.yaml")

    assert project.load(env={"CURTSY_CONFIG": " other.yaml\r\n"}).policies.default.burst == 2


def test_none_lifts_a_limit_in_the_environment_too(project: Project) -> None:
    """C7"""
    settings = project.load(env={"CURTSY_QPS": "none", "CURTSY_GLOBAL_QPS": "None", "CURTSY_STORE": "none"})

    assert (settings.policies.default.qps, settings.global_qps, settings.store) == (None, None, None)


def test_a_variable_that_is_no_setting_is_warned_about(project: Project, snapshot: Snapshot) -> None:
    """C7"""
    settings = project.load(env={"CURTSY_QSP": "1", "LOG_LEVEL": "notice"})

    level, variable = settings.warnings
    assert missing(level, "LOG_LEVEL", "'notice'") == []
    assert missing(variable, "CURTSY_QSP", "CURTSY_QPS") == []
    snapshot(level, "level")
    snapshot(variable, "variable")


def test_a_variable_by_another_word_is_told_the_right_one(project: Project) -> None:
    """Issue 18, point 4"""
    settings = project.load(env={"CURTSY_RATE": "1", "CURTSY_RETRIES": "2"})

    rate, retries = settings.warnings
    assert missing(rate, "CURTSY_RATE", "CURTSY_QPS") == []
    assert missing(retries, "CURTSY_RETRIES", "CURTSY_MAX_RETRIES") == []


# --- Origins


def test_origins_name_file_and_line_variable_preset_argument_or_built_in(project: Project) -> None:
    """U9: what `curtsy why` shows"""
    project.write("""# a comment

default_policy:
  qps: 0.5
  pause:
    - 1
    - 2
allowlist:
  - domain: example.org
    domain_category: trusted
    limited: false

    burst: 3
""")

    settings = project.load(env={"RAG_USER_AGENT": "bot/1"}, preset="own", delay=1)

    assert settings.origin("x.example.org", "burst") == "curtsy.yaml:13"
    assert settings.origin("x.example.org", "domain_category") == "curtsy.yaml:10"
    assert settings.origin("x.example.org", "max_requests_per_day") == "curtsy.yaml:11"
    assert settings.origin("example.com", "qps") == "curtsy.yaml:4"
    assert settings.origin("example.com", "pause") == settings.origin(None, "pause_max") == "curtsy.yaml:5"
    assert settings.origin("example.com", "max_requests_per_day") == "preset own"
    assert settings.origin("example.com", "delay") == "argument"
    assert settings.origin("example.com", "timeout") == "built-in"
    assert settings.origin(None, "user_agent") == "environment variable RAG_USER_AGENT"
    assert settings.origin(None, "denied") == "built-in"
    assert settings.value("x.example.org", "pause") == [0, 0]
    assert settings.value(None, "pause") == [1, 2]


def test_the_origin_of_an_unknown_key_is_an_error_with_the_nearest_one(project: Project, snapshot: Snapshot) -> None:
    """U9"""
    with pytest.raises(PolicyError, match=r"qsp .* qps\b") as caught:
        project.load().origin(None, "qsp")

    snapshot(str(caught.value))


# --- The rate limiter's JSON file

LIMITS = """{
\t"version": "1.0",
\t"default_config": {"requests_per_second": 2.0, "burst_capacity": 3},
\t"domains": {"Example.com": {"requests_per_second": 0.5, "burst_capacity": 1}, "www.b.example": {"burst_capacity": 9}}
}"""


def test_a_json_file_without_a_default_has_the_documents(project: Project) -> None:
    """L7"""
    default, domains = load_limits(project.write('{"version": "1.0", "domains": {}}', "limits.json"))

    assert default == LimitConfig(1.0, 1)
    assert domains == {}


@pytest.mark.parametrize("name", ["limits.json", "limits.yaml"])
def test_the_json_file_is_taken_as_settings_too(project: Project, name: str) -> None:
    """L7: known by its shape, whatever it is called"""
    project.write(LIMITS.replace("\t", " "), name)

    settings = project.load(config=name)

    assert (settings.policies.default.qps, settings.policies.default.burst) == (2.0, 3)
    assert (settings.policies.of("a.example.com").qps, settings.policies.of("a.example.com").burst) == (0.5, 1)
    assert (settings.policies.of("b.example").qps, settings.policies.of("b.example").burst) == (2.0, 9)
    assert settings.policies.default.pause_max == 5.5
    assert settings.origin("example.com", "qps").startswith(name)


def test_the_json_file_wins_over_the_users_file_domain_by_domain(project: Project) -> None:
    """L7, U9: it is the project's, whatever its form"""
    project.write_user("allowlist: [{domain: example.com, qps: 3, burst: 4, max_requests_per_day: 7}]\n")
    project.write('{"version": "1.0", "domains": {"example.com": {"requests_per_second": 0.5}}}', "limits.json")

    settings = project.load(config="limits.json")
    policy = settings.policies.of("example.com")

    assert (policy.qps, policy.burst, policy.max_requests_per_day) == (0.5, 4, 7)
    assert settings.origin("example.com", "qps") == "limits.json"


def test_json_is_also_a_way_to_write_the_other_file(project: Project) -> None:
    """U9"""
    project.write('{"default_policy": {"qps": null}, "denylist": ["a.example"]}', "mine.json")

    policies = project.load(config="mine.json").policies

    assert policies.default.qps is None
    assert policies.of("a.example").denied


# --- User agent


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        ("AIAssistantBot/1.0", False),
        ("bot/1.0 (+https://example.org/bot)", True),
        ("bot/1.0 (http://example.org)", True),
        ("bot (me@example.org)", True),
        ("bot/1.0 (@me)", False),
        ("bot/1.0 (contact: nobody)", False),
    ],
)
def test_a_user_agent_names_a_contact_by_page_or_mail_address(agent: str, expected: bool) -> None:
    """U10"""
    assert names_contact(agent) is expected


def test_curtsys_own_user_agent_names_a_contact(project: Project) -> None:
    """U10, R10"""
    assert names_contact(project.load().user_agent)


@pytest.mark.parametrize("agent", ["bot\r\nX-Injected: 1", "bot\0", "bot\x7f", "bot\x85", "b\x1bt", "bo\tt", "böt"])
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_user_agent_that_could_smuggle_a_header_is_refused_at_the_start(
    project: Project, agent: str, by: str
) -> None:
    """F26"""
    with pytest.raises(PolicyError, match=r"user_agent = .*ASCII"):
        project.load(user_agent=agent) if by == "argument" else project.load(env={"RAG_USER_AGENT": agent})


def test_a_line_that_ends_in_a_variable_is_not_sent_and_in_an_argument_is_refused(
    project: Project, snapshot: Snapshot
) -> None:
    """F26, C7: a file of variables may have been written on another system"""
    assert project.load(env={"RAG_USER_AGENT": "bot\r\n"}).user_agent == "bot"

    with pytest.raises(PolicyError, match=r"user_agent = .*ASCII") as caught:
        project.load(user_agent="bot\n")

    snapshot(str(caught.value))


@pytest.mark.parametrize("agent", ["(compatible)", "/1.0", " bot", "bot,x"])
def test_a_user_agent_must_begin_with_a_product_token(project: Project, agent: str, snapshot: Snapshot) -> None:
    """U10: robots.txt is asked for it"""
    with pytest.raises(PolicyError, match="user_agent = ") as caught:
        project.load(user_agent=agent)

    assert agent in str(caught.value)
    snapshot(str(caught.value))


# --- Warnings


def test_a_short_cooldown_is_warned_about(project: Project, snapshot: Snapshot) -> None:
    """Q4"""
    project.write("allowlist:\n  - domain: a.example\n    breaker_cooldown: 60\n")

    warnings = project.load(env={"CIRCUIT_BREAKER_COOLDOWN": "299"}).warnings

    by_variable, by_file = warnings
    assert missing(by_variable, "CIRCUIT_BREAKER_COOLDOWN", "breaker_cooldown = 299 ", " 300 ") == []
    assert missing(by_file, "curtsy.yaml", "line 3", "a.example", "breaker_cooldown = 60 ", " 300 ") == []
    snapshot(by_file)


def test_a_burst_of_more_than_a_minutes_worth_is_warned_about(project: Project, snapshot: Snapshot) -> None:
    """L6"""
    project.write("""default_policy: {qps: 0.5, burst: 30}
allowlist:
  - {domain: a.example, burst: 31}
  - {domain: b.example, qps: 0.1}
""")

    warnings = project.load().warnings

    by_burst, by_rate = warnings
    assert missing(by_burst, "curtsy.yaml", "line 3", 'allowlist[0] "a.example"', "burst = 31 ", "0.5", "30") == []
    assert missing(by_rate, "curtsy.yaml", "line 4", 'allowlist[1] "b.example"', "burst = 30 ", "0.1", "6") == []
    snapshot(by_burst)


def test_a_gentle_rate_is_not_warned_about(project: Project) -> None:
    """L6: a burst of 1 cannot be smaller"""
    assert project.load(qps=0.001).warnings == ()


# --- Secrets and cost


def test_the_password_of_a_store_is_never_shown(project: Project) -> None:
    """F62"""
    settings = project.load(store="redis://user:geheim@localhost/0")
    with pytest.raises(PolicyError) as caught:
        project.load(cache_mode="redis://user:geheim@localhost/0")

    assert settings.store == "redis://user:geheim@localhost/0"
    assert "geheim" not in repr(settings)
    assert "geheim" not in str(caught.value)


def test_importing_settings_does_not_import_pydantic_or_yaml() -> None:
    """C7: an import is quick"""
    code = "import sys, curtsy.settings; print({'pydantic', 'yaml', 'platformdirs'} & sys.modules.keys())"

    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert out.stdout == "set()\n"


def test_a_long_denylist_is_read_in_reasonable_time(project: Project) -> None:
    """U9: lists of some ten thousand domains are in use"""
    project.write("denylist:\n" + "".join(f"  - host{number}.example.org\n" for number in range(10_000)))

    policies = project.load().policies

    assert policies.of("a.host9999.example.org").denied
    assert policies.of("host1.example.org") is policies.of("host2.example.org")
