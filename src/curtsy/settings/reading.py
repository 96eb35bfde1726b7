"""Reading of all settings: merge the sources, lowest precedence first, and build the policies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curtsy.core.errors import InvalidDomain, PolicyError
from curtsy.core.policy import LimitConfig, Policies, Policy, entry_name, large_burst, short_cooldown
from curtsy.core.setting import rule, settings_of
from curtsy.core.url import parse_domain
from curtsy.settings.general import NOT_LIMITED, BrokenRule, Given, Key, Preset, Settings, Spot, keys, keys_of
from curtsy.settings.problems import Problems, Verbatim, kind_of, shown
from curtsy.settings.sources import (
    ARGUMENT,
    DOTENV,
    Source,
    Value,
    from_arguments,
    from_environment,
    from_file,
    merged,
    preset_of,
    read_dotenv,
    read_file,
    variable,
)
from curtsy.stores.url import check_place

PROJECT_FILES = (Path("config", "domains.yaml"), Path("curtsy.yaml"))
"""Settings files of a project, relative to its directory; the second takes precedence."""

USER_FILE = Path("curtsy.yaml")
"""Name of the user's settings file in the platform's configuration directory."""

LIMIT_NAMES = {"requests_per_second": "qps", "burst_capacity": "burst"}
"""Fields of `LimitConfig`, and the settings that they mean."""

LIMITS = {name: Key.of(each, "policy") for name, each in settings_of(LimitConfig).items()}

NOWHERE = Spot("built-in")

_PAUSES = {"pause", "pause_min", "pause_max"}


def load(
    *,
    config: str | os.PathLike[str] | None = None,
    preset: Preset | None = None,
    env: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    user_directory: str | os.PathLike[str] | None = None,
    other_arguments: Iterable[str] = (),
    **arguments: Any,
) -> Settings:
    """Read and validate all settings.

    Raises PolicyError, which lists every error with its place, rule and value.

    `config` names a file that replaces the project's files (also `CURTSY_CONFIG`). `directory` is the project
    directory, by default the working directory. `user_directory` holds the user's file, by default the platform's
    configuration directory. `env` is by default the environment; it takes precedence over the project's `.env` file.

    Any key of the reference page is accepted as an argument. Policy keys change the default policy. `allowlist` and
    `denylist` take the same values as in a file. `other_arguments` names those of the caller that are not settings, for
    suggestions.
    """
    if preset is not None:
        arguments["preset"] = preset
    problems = Problems()
    here = working_directory() if directory is None else Path(directory)
    dotenv = read_dotenv(here, problems)
    real = os.environ if env is None else env
    env = merged(real, dotenv)
    spots = {name: spot for name, (_, spot) in dotenv.items() if name not in real}
    files = [
        each
        for each in settings_files(config, env, directory, user_directory)
        if each.required or os.path.lexists(each.path)
    ]
    sources = [from_file(read_file(each.path, each.shown), Spot(each.shown), problems) for each in files]
    sources += [from_environment(env, problems, spots), from_arguments(arguments, problems, other_arguments)]
    reading = Reading(problems)
    for source in (preset_of(sources), *sources):
        reading.merge_values(source)
    for source in sources:
        reading.merge_entries(source)
    policies = _policies(reading)
    problems.raise_errors()
    own = {each.shown for each in files if each.path.parent in (here, here / PROJECT_FILES[0].parent)}
    chosen = os.fspath(config or variable(real, "CURTSY_CONFIG"))
    # A file named by `.env` is as untrusted as `.env` itself.
    by_dotenv = "" if chosen or "CURTSY_CONFIG" in real else variable(env, "CURTSY_CONFIG")
    own = own - {chosen} | {DOTENV}
    return Settings(
        policies=policies,
        files=tuple(each.path for each in files),
        warnings=tuple(problems.warnings),
        notices=tuple(_notices(reading, own, here, by_dotenv)),
        given=reading.values,
        entries=reading.entries,
        denied=reading.denied,
        **{name: reading.fallback(name) for name in keys_of("general")},
    )


LOOSE = {"allow_private": False, "respect_robots": True, "store": None, "cache_dir": None}
"""Keys reported if a file of the working directory sets them, with the harmless value of each."""


def _notices(reading: Reading, files: set[str], directory: Path, by_dotenv: str) -> Iterator[str]:
    """Yield a sentence for each file of the working directory that sets keys of `LOOSE` to unsafe values.

    `by_dotenv` is the file that the directory's `.env` names, in any directory; empty for no file.
    """
    for file in sorted(files | ({by_dotenv} - {""})):
        found = [
            name
            for name, harmless in LOOSE.items()
            for given in (reading.values.get(name), *(entry.get(name) for entry in reading.entries.values()))
            if given is not None and given.spot.source == file and given.value != harmless
        ]
        if found:
            names = ", ".join(dict.fromkeys(found))
            why = ".env in the working directory names it" if file == by_dotenv else "it is in the working directory"
            path = directory / os.path.expanduser(file)
            yield f"{path} sets {names}: {why}. Remove it if it is not yours."


_noticed: set[str] = set()


def new_notices(settings: Settings) -> list[str]:
    """Return the notices that this process has not returned before; a notice with more keys is new."""
    new = [each for each in settings.notices if each not in _noticed]
    _noticed.update(new)
    return new


def _policies(reading: Reading) -> Policies:
    everywhere = {name: given for name, given in reading.values.items() if keys()[name].scope == "policy"}
    default = reading.policy(Policy(), everywhere)
    for name in reading.denied:  # a denylist entry overrides an allowlist entry of the same name
        reading.entries.pop(name, None)
    entries = {}
    for name, given in reading.entries.items():
        is_shared = "shared" in given and given["shared"].value
        entries[name] = reading.policy(default, given, name if is_shared else None)
    denied = default.replace(denied=True)
    entries.update(dict.fromkeys(reading.denied, denied))
    return Policies(
        default,
        entries,
        global_qps=reading.fallback("global_qps"),
        global_burst=reading.fallback("global_burst"),
        user_agent=reading.fallback("user_agent"),
    )


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """Candidate settings file."""

    path: Path
    shown: str
    """Name in messages."""

    required: bool = False
    """True if the user named the file: a missing file is then an error."""


def settings_files(
    config: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    directory: str | os.PathLike[str] | None = None,
    user_directory: str | os.PathLike[str] | None = None,
) -> list[SettingsFile]:
    """Return the candidate settings files, lowest precedence first.

    The user's file comes first, then the named file or the project's files.
    """
    if config is not None and not isinstance(config, str | os.PathLike):
        raise rule("config", config, "the path of a settings file")
    if user_directory is None:
        import platformdirs

        user_directory = platformdirs.user_config_path("curtsy", appauthor=False)
    user = Path(user_directory) / USER_FILE
    project = working_directory() if directory is None else Path(directory)
    named = os.fspath(config) if config is not None else variable(env, "CURTSY_CONFIG")
    if named:
        path = project / os.path.expanduser(named)  # Path.expanduser raises for an unknown user
        return [SettingsFile(user, str(user)), SettingsFile(path, named, required=True)]
    return [SettingsFile(user, str(user)), *(SettingsFile(project / each, str(each)) for each in PROJECT_FILES)]


def working_directory() -> Path:
    """Return the working directory; an empty path if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path()


def load_limits(path: str | os.PathLike[str]) -> tuple[LimitConfig, dict[str, LimitConfig]]:
    """Read the rate limiter's JSON file (L7): the default, and the configurations by domain.

    Validates all entries first. An entry takes missing fields from the default. Raises PolicyError.
    """
    spot = Spot(os.fspath(path))
    root = read_file(Path(path), spot.source)
    if root is None or not isinstance(root.data, dict):
        raise PolicyError(
            f'{spot.source}: the file must contain {{"version": "1.0", "default_config": …, "domains": …}}.'
        )
    reading = Reading(Problems())
    built_in = LimitConfig()
    reading.values = {meant: Given(getattr(built_in, name), spot) for name, meant in LIMIT_NAMES.items()}
    source = from_file(root, spot, reading.problems, is_limits=True)
    reading.merge_values(source)
    reading.merge_entries(source, parse_domain)
    reading.problems.raise_errors()

    def config(given: Mapping[str, Given]) -> LimitConfig:
        return LimitConfig(**{name: given[meant].value for name, meant in LIMIT_NAMES.items()})

    return config(reading.values), {name: config(reading.values | entry) for name, entry in reading.entries.items()}


class Reading:
    """Merged values of all sources."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.values: dict[str, Given] = {}
        """General keys and default policy keys that a source gave."""

        self.entries: dict[str, dict[str, Given]] = {}
        self._layers: dict[str, list[dict[str, Given]]] = {}
        """Values of each source for a domain, lowest precedence first."""

        self.denied: dict[str, Given] = {}

    # --- Values ----------------------------------------------------------------------------------------------------

    def merge_values(self, source: Source) -> None:
        """Merge a source's values for all hosts over the earlier ones."""
        general = self._checked(keys_of("general"), source.general, "")
        if (store := general.get("store")) is not None:
            self._check_store(store)
        policy = source.policy or self._mapping(source.sections.get("default_policy"), "default_policy")
        self.values |= general | self._checked(keys_of("policy"), policy, source.section)
        self.values |= self._limits(source.sections.get("default_config"), "default_config")

    def merge_entries(self, source: Source, limits_name: Callable[[str], str] = entry_name) -> None:
        """Merge a source's entries over the earlier ones, key by key.

        `limits_name` returns the name of an entry of the rate limiter's JSON file.
        """
        seen: dict[str, Spot] = {}
        for number, item in enumerate(self._items(source.sections.get("allowlist"), "allowlist")):
            section, given, name = self._entry(keys_of("policy", "entry"), item, f"allowlist[{number}]")
            if name is not None and self._is_new(name, item.spot, section, seen):
                self._put(name, given)
        for domain, value in self._mapping(source.sections.get("domains"), "domains").items():
            section = f"domains {_quoted(domain)}"
            given = self._limits(value, section)
            try:
                if self._is_new(name := limits_name(domain), value.spot, section, seen):
                    self._put(name, given)
            except InvalidDomain as error:
                self.problems.add(value.spot, section, str(error))
        seen = {}
        for number, item in enumerate(self._items(source.sections.get("denylist"), "denylist")):
            section, given, name = self._entry({"domain": keys()["domain"]}, item, f"denylist[{number}]")
            if name is not None and self._is_new(name, item.spot, section, seen):
                self.denied.setdefault(name, given["domain"])

    def _put(self, name: str, given: dict[str, Given]) -> None:
        layers = self._layers.setdefault(name, [])
        layers.append(given)
        self.entries[name] = _joined(layers)

    def _entry(self, known: Mapping[str, Key], item: Value, section: str) -> tuple[str, dict[str, Given], str | None]:
        """Check one entry of a list; return its label, its values and its name (None if invalid)."""
        data = {"domain": item} if isinstance(item.data, str) else item.data
        if not isinstance(data, dict):
            rule = "a domain, or a mapping with one, such as - domain: example.org"
            self.problems.broken(item.spot, "", section, item.plain(), rule)
            return section, {}, None
        domain = data["domain"].data if "domain" in data else None
        if isinstance(domain, str):
            section = f"{section} {_quoted(domain)}"
        given = self._checked(known, data, section, item.spot)
        if "domain" not in given or not isinstance(domain, str):
            return section, {}, None
        try:
            return section, given, entry_name(domain)
        except InvalidDomain as error:
            bare = domain.removeprefix("*.")
            hint = f" An entry applies to all hosts under it: write {bare!r}." if bare != domain else ""
            self.problems.add(given["domain"].spot, section, f"{error}{hint}")
            return section, {}, None

    def _is_new(self, name: str, spot: Spot, section: str, seen: dict[str, Spot]) -> bool:
        if name in seen:
            first = "" if seen[name].line is None else f", first in line {seen[name].line}"
            self.problems.add(spot, section, f"{name} is given twice{first}. Merge the two entries.")
            return False
        seen[name] = spot
        return True

    def _limits(self, value: Value | None, section: str) -> dict[str, Given]:
        """Check a section of the rate limiter's JSON file; return its values by the settings that they mean."""
        given = self._checked(LIMITS, self._mapping(value, section), section)
        return {LIMIT_NAMES[name]: each for name, each in given.items()}

    # --- Checking --------------------------------------------------------------------------------------------------

    def _checked(
        self, known: Mapping[str, Key], section: Mapping[str, Value], title: str, spot: Spot = NOWHERE
    ) -> dict[str, Given]:
        """Check the values of one section; report invalid values and return the valid ones."""
        given: dict[str, Given] = {}
        broken = set()
        for name, value in section.items():
            if name not in known:
                self.problems.unknown(value.spot, title, name, known, elsewhere=known is not LIMITS)
                continue
            key, plain = known[name], value.plain()
            if plain is None and "domain" in known and name != "domain" and not key.optional:
                continue  # B3: an empty value that the key forbids is no override
            try:
                given[name] = Given(key.read(plain), value.spot, title, _written(value, plain))
            except BrokenRule as error:
                broken.add(name)
                self._report(key, value, title, error)
        if "domain" in known and "domain" not in given:
            if "domain" not in section:
                self.problems.add(spot, title, "domain is missing. Add a line domain: example.org.")
            return {}  # an entry without a name cannot be stored
        if broken & _PAUSES:  # the pause keys are valid only together
            given = {name: each for name, each in given.items() if name not in _PAUSES}
        return self._without_pause(given, title)

    def _report(self, key: Key, value: Value, title: str, error: BrokenRule) -> None:
        plain, name = value.plain(), key.name
        if error.item is None:
            written, default = _written(value, plain), self.fallback(name)
            no_limit = ", or None" if value.spot == ARGUMENT else ", or none"
            rule = f"{error}{no_limit}" if key.optional and key.kind in (int, float) else str(error)
            self.problems.broken(value.spot, title, name, written, rule, default)
        else:
            written = _written(value, plain[error.item], error.item)
            self.problems.broken(value.spot, title, f"{name}[{error.item}]", written, str(error))

    def _without_pause(self, given: dict[str, Given], title: str) -> dict[str, Given]:
        """Replace `pause` by the two settings that it stands for."""
        pause = given.pop("pause", None)
        if pause is not None:
            for name, value in zip(("pause_min", "pause_max"), pause.value, strict=True):
                if name in given:
                    self.problems.add(given[name].spot, title, f"{name} is also set by pause. Remove one of them.")
                given[name] = Given(value, pause.spot, title, value)
        return given

    def _check_store(self, given: Given) -> None:
        if given.value is None:
            return
        try:
            check_place(given.value)
        except PolicyError as error:
            what = str(error)
            self.problems.add(given.spot, given.section, what if what.startswith("store = ") else f"store: {what}")

    def _mapping(self, value: Value | None, title: str) -> dict[str, Value]:
        if value is None or value.data is None:
            return {}
        if isinstance(value.data, dict):
            return value.data
        what = f"{title} must contain settings, not {kind_of(value.data)}. List them under {title}."
        self.problems.add(value.spot, "", what)
        return {}

    def _items(self, value: Value | None, title: str) -> list[Value]:
        if value is None or value.data is None:
            return []
        if isinstance(value.data, list):
            return value.data
        what = f"{title} must be a list, not {kind_of(value.data)}. Start each entry with a dash."
        self.problems.add(value.spot, "", what)
        return []

    def fallback(self, name: str) -> Any:
        """Return a key's value so far, or its default; an ellipsis if it has no default."""
        name = LIMIT_NAMES.get(name, name)
        if name == "pause":
            return [self.fallback("pause_min"), self.fallback("pause_max")]
        if name in self.values:
            return self.values[name].value
        if name == "timezone":
            return "local"
        return keys()[name].default if name in keys_of("general", "policy") else ...

    # --- Policies --------------------------------------------------------------------------------------------------

    def policy(self, base: Policy, given: Mapping[str, Given], key: str | None = None) -> Policy:
        """Return `base` with the given changes; report values that contradict each other."""
        changes = {name: each.value for name, each in given.items() if keys()[name].scope == "policy"}
        if key is not None:
            changes["key"] = key
        if not changes:
            return base
        low, high = changes.get("pause_min", base.pause_min), changes.get("pause_max", base.pause_max)
        if high < low:
            name = "pause_min" if "pause_min" in given else "pause_max"
            rule = f"at most pause_max, {high:g}" if name == "pause_min" else f"at least pause_min, {low:g}"
            self._report_conflict(name, given, f"{rule}. Give both, as pause: [least, largest]")
            return base
        try:
            policy = base.replace(**changes)
        except PolicyError as error:
            name, _, rest = str(error).partition(" = ")
            self._report_conflict(name, given, rest.partition(" must be ")[2].removesuffix("."))
            return base
        self._warn(policy, given)
        return policy

    def _report_conflict(self, name: str, given: Mapping[str, Given], rule: str) -> None:
        cause = given.get(name)
        other = next(iter(given.values())) if cause is None else cause
        written = self.fallback(name) if cause is None else cause.written
        self.problems.broken(other.spot, other.section, name, written, rule)

    def _warn(self, policy: Policy, given: Mapping[str, Given]) -> None:
        """Warn about valid but unusual values (L6, Q4)."""
        cause = given.get("burst") or given.get("qps")
        if cause is not None and (what := large_burst("burst", policy.burst, policy.qps)):
            self.problems.warn(cause.spot, cause.section, what)
        cooldown = given.get("breaker_cooldown")
        if cooldown is not None and policy.breaker:
            what = short_cooldown("breaker_cooldown", policy.breaker_cooldown, shown(cooldown.written))
            if what is not None:
                self.problems.warn(cooldown.spot, cooldown.section, what)


def _joined(layers: list[dict[str, Given]]) -> dict[str, Given]:
    """Merge the values of several sources for one entry, key by key; the last source wins.

    Only the last `limited` counts; earlier ones lose the values they implied.
    """
    last = max((number for number, given in enumerate(layers) if "limited" in given), default=None)
    entry: dict[str, Given] = {}
    for number, given in enumerate(layers):
        if number == last and not given["limited"].value:
            limited = given["limited"]
            entry |= {key: Given(value, limited.spot, limited.section) for key, value in NOT_LIMITED.items()}
        entry |= given
    return entry


def _written(value: Value, plain: Any, index: int | str | None = None) -> Any:
    """Return a value, or an item of a list, as the user wrote it, if known: `1e3` is not shown as 1000."""
    if isinstance(value.data, list) and isinstance(index, int):
        value = value.data[index]
    return plain if value.text is None else Verbatim(value.text)


def _quoted(domain: str) -> str:
    return json.dumps(domain[:100], ensure_ascii=False)
