"""Settings: policies built from files, environment, presets and arguments.

    settings = load()                      # files and environment
    settings = load(preset="broad", user_agent="examplebot/1.0 (+https://example.org/bot)")
    settings.policies.of("example.org").qps
    settings.origin("example.org", "qps")  # "config/domains.yaml:12"

Precedence, lowest first: built-in, preset, user file, project file, environment, argument. `curtsy.settings.live`
reloads changed files while the program runs. pydantic and YAML are imported on first use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from curtsy.core.errors import PolicyError
from curtsy.core.message import parse_domain
from curtsy.core.policy import LimitConfig, Policies, Policy, rule

if TYPE_CHECKING:
    from curtsy.settings.reading import Given, Reading

__all__ = ["Settings", "load", "load_limits", "names_contact"]

PROJECT_FILES = (Path("config", "domains.yaml"), Path("curtsy.yaml"))
"""Settings files of a project, relative to its directory; the second takes precedence."""

AT_START = (
    "store", "outage_share", "cache_dir", "cache_size", "cache_mode", "log_level", "log_format", "stats_every",
)  # fmt: skip
"""Keys that take effect only at program start; a reload applies all other keys."""

CacheMode = Literal["normal", "revalidate", "refresh", "offline", "off"]
Preset = Literal["gentle", "broad", "own"]

USER_FILE = Path("curtsy.yaml")
"""Name of the user's settings file in the platform's configuration directory."""


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """Validated settings. Immutable: a reload creates a new instance."""

    policies: Policies
    """Policy of every host, global limit and user agent."""

    preset: str
    store: str | None = field(repr=False)  # may contain a password
    """URL of the store; None for a file in the platform's state directory."""

    outage_share: float
    """Share of the global rate that this process uses while the store is unreachable."""

    cache_dir: Path | None
    """Directory of the page cache; None for the platform's cache directory."""

    cache_size: int | None
    """Maximum size of the page cache in bytes; None for no limit."""

    cache_mode: CacheMode
    """Use of cached pages; `off` disables the cache."""

    log_level: str
    log_format: str
    stats_every: float | None
    """Seconds between two statistics log lines; None disables them."""

    files: tuple[Path, ...] = ()
    """Files read, lowest precedence first."""

    warnings: tuple[str, ...] = ()
    """Warnings about valid but unusual settings; the program reports them at start."""

    notices: tuple[str, ...] = ()
    """Notices about files of the working directory that relax settings, one per file; see `new_notices`."""

    _values: Mapping[str, Given] = field(default_factory=dict, repr=False)
    _entries: Mapping[str, Mapping[str, Given]] = field(default_factory=dict, repr=False)
    _denied: Mapping[str, Given] = field(default_factory=dict, repr=False)

    @property
    def user_agent(self) -> str:
        """User agent of requests, also matched against robots.txt groups."""
        return self.policies.user_agent

    @property
    def global_qps(self) -> float | None:
        """Requests per second over all hosts; None for no limit."""
        return self.policies.global_qps

    @property
    def global_burst(self) -> float:
        """Requests over all hosts that may be sent at once after an idle period."""
        return self.policies.overall.burst

    def value(self, domain: str | None, key: str) -> Any:
        """Return the value of a key for a domain; None: for hosts without an entry.

        Raises PolicyError for an unknown key.
        """
        from curtsy.settings.keys import BUILT_IN, keys

        name = _key(key)
        if name == "pause":
            return [self.value(domain, "pause_min"), self.value(domain, "pause_max")]
        if name in BUILT_IN:
            return getattr(self, name)
        policy = self.policies.default if domain is None else self.policies.of(parse_domain(domain))
        if name == "shared":
            return policy.key is not None
        return policy.denied if name == "denied" else getattr(policy, keys()[name].field)

    def origin(self, domain: str | None, key: str) -> str:
        """Return the origin of a key's value for a domain; None: for hosts without an entry.

        The origin is a file and line (`config/domains.yaml:12`), an environment variable, a preset, `argument` or
        `built-in`. Raises PolicyError for an unknown key.
        """
        name = _key(key)
        name = "pause_min" if name == "pause" else name
        given = None
        entry = None if domain is None else self.policies.entry(parse_domain(domain))
        if entry is not None:
            given = self._denied.get(entry) if name == "denied" else self._entries.get(entry, {}).get(name)
        given = given or self._values.get(name)
        return "built-in" if given is None else given.spot.origin


def _key(name: str) -> str:
    """Return the name of a key, given its name or its field of `Policy`."""
    import difflib

    from curtsy.settings.keys import keys

    for key in keys().values():
        if name in (key.name, key.field) and key.name not in ("domain", "limited"):
            return key.name
    if name == "denied":
        return name
    near = difflib.get_close_matches(name, list(keys()), 1)
    raise PolicyError(f"{name} is not a setting." + (f" Did you mean {near[0]}?" if near else ""))


def load(
    *,
    config: str | os.PathLike[str] | None = None,
    preset: Preset | None = None,
    env: Mapping[str, str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    user_directory: str | os.PathLike[str] | None = None,
    beside: Iterable[str] = (),
    **arguments: Any,
) -> Settings:
    """Read and validate all settings.

    Raises PolicyError, which lists every error with its place, rule and value.

    `config` names a file that replaces the project's files (also `CURTSY_CONFIG`). `directory` is the project
    directory, by default the working directory. `user_directory` holds the user's file, by default the platform's
    configuration directory. `env` is by default the environment; it takes precedence over the project's `.env` file.

    Any key of the reference page is accepted as an argument. Policy keys change the default policy. `allowlist` and
    `denylist` take the same values as in a file. `beside` names other arguments of the caller: a misspelled argument
    may be one of them.
    """
    from curtsy.settings.document import Spot, read
    from curtsy.settings.dotenv import NAME as DOTENV
    from curtsy.settings.dotenv import merged, read_dotenv
    from curtsy.settings.problems import Problems
    from curtsy.settings.reading import Reading
    from curtsy.settings.sources import from_arguments, from_environment, from_file, preset_of

    if preset is not None:
        arguments["preset"] = preset
    complaints = Problems()
    here = working_directory() if directory is None else Path(directory)
    beside_files = read_dotenv(here, complaints)
    real = os.environ if env is None else env
    env = merged(real, beside_files)
    spots = {name: spot for name, (_, spot) in beside_files.items() if name not in real}
    files = [
        each
        for each in settings_files(config, env, directory, user_directory)
        if each.required or os.path.lexists(each.path)
    ]
    sources = [from_file(read(each.path, each.shown), Spot(each.shown), complaints) for each in files]
    sources += [from_environment(env, complaints, spots), from_arguments(arguments, complaints, beside)]
    reading = Reading(complaints)
    for source in (preset_of(sources), *sources):
        reading.take_values(source)
    for source in sources:
        reading.take_entries(source)
    policies = _policies(reading)
    complaints.raise_errors()
    own = {each.shown for each in files if each.path.parent in (here, here / PROJECT_FILES[0].parent)}
    chosen = os.fspath(config or variable(real, "CURTSY_CONFIG"))
    # A file named by `.env` is as untrusted as `.env` itself.
    by_dotenv = "" if chosen or "CURTSY_CONFIG" in real else variable(env, "CURTSY_CONFIG")
    own = own - {chosen} | {DOTENV}
    general = {name: reading.fallback(name) for name in ("preset", *AT_START)}
    if general["cache_dir"] is not None:
        general["cache_dir"] = Path(os.path.expanduser(general["cache_dir"]))
    return Settings(
        policies=policies,
        files=tuple(each.path for each in files),
        warnings=tuple(complaints.warnings),
        notices=tuple(_notices(reading, own, here, by_dotenv)),
        _values=reading.values,
        _entries=reading.entries,
        _denied=reading.denied,
        **general,
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
            why = ".env in the working directory names it" if file == by_dotenv else "it lies in the working directory"
            path = directory / os.path.expanduser(file)
            yield f"{path} sets {names}: {why}. Remove it if it is not yours."


_noticed: set[str] = set()


def new_notices(settings: Settings) -> list[str]:
    """Return the notices that this process has not returned before; a notice with more keys is new."""
    new = [each for each in settings.notices if each not in _noticed]
    _noticed.update(new)
    return new


def _policies(reading: Reading) -> Policies:
    from curtsy.settings.keys import keys

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


def variable(env: Mapping[str, str], name: str) -> str:
    """Return a variable's value, stripped of white space; empty if unset."""
    return env.get(name, "").strip(" \t\r\n")


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
    from curtsy.settings.document import Spot, read
    from curtsy.settings.problems import Problems
    from curtsy.settings.reading import Given, Reading

    spot = Spot(os.fspath(path))
    root = read(Path(path), spot.source)
    if root is None or not isinstance(root.data, dict):
        raise PolicyError(f'{spot.source}: the file must hold {{"version": "1.0", "default_config": …, "domains": …}}.')
    reading = Reading(Problems())
    built_in = LimitConfig()
    reading.values = {"qps": Given(built_in.requests_per_second, spot), "burst": Given(built_in.burst_capacity, spot)}
    reading.take_default_limits(root.data, spot)
    reading.take_domain_limits(root.data, parse_domain)
    reading.complaints.raise_errors()
    default = LimitConfig(reading.values["qps"].value, reading.values["burst"].value)
    fields = {"qps": "requests_per_second", "burst": "burst_capacity"}
    domains = {
        name: replace(default, **{fields[key]: given.value for key, given in entry.items()})
        for name, entry in reading.entries.items()
    }
    return default, domains


_CONTACT = re.compile(r"https?://[^\s()<>]+|[^\s@()<>:;,]+@[^\s@()<>:;,]+\.[^\s@()<>:;,]+", re.IGNORECASE)


def names_contact(user_agent: str) -> bool:
    """Return whether a user agent contains a web page or a mail address (U10)."""
    return _CONTACT.search(user_agent) is not None
