"""Merging of the sources of settings, lowest precedence first, into policies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from curtsy.core.errors import InvalidDomain, PolicyError
from curtsy.core.policy import Policy, entry_name
from curtsy.settings.document import Spot, Value
from curtsy.settings.keys import BUILT_IN, DENIED, ENTRY, GENERAL, LIMITS, NOT_LIMITED, POLICY, keys, names, rule_of
from curtsy.settings.problems import Problems, Verbatim, kind_of, shown
from curtsy.settings.sources import LIMIT_SECTIONS, Source
from curtsy.stores.url import check_place

LIMIT_NAMES = {"requests_per_second": "qps", "burst_capacity": "burst"}
LEAST_COOLDOWN = 300
"""Seconds below which a cooldown causes a warning (Q4)."""

NOWHERE = Spot("built-in")

_PAUSES = {"pause", "pause_min", "pause_max"}


@dataclass(frozen=True, slots=True)
class Given:
    """A validated value and its source."""

    value: Any
    spot: Spot
    section: str = ""
    """Part of the file, for messages: `allowlist[2] "example.org"`."""

    written: Any = None
    """The value as written."""


class Reading:
    """Merged values of all sources."""

    def __init__(self, complaints: Problems) -> None:
        self.complaints = complaints
        self.values: dict[str, Given] = {}
        """General keys and default policy keys that a source gave."""

        self.entries: dict[str, dict[str, Given]] = {}
        self._said: dict[str, list[dict[str, Given]]] = {}
        """Values of each source for a domain, lowest precedence first."""

        self.denied: dict[str, Given] = {}

    # --- Values ----------------------------------------------------------------------------------------------------

    def take_values(self, source: Source) -> None:
        """Merge a source's values for all hosts over the earlier ones."""
        if source.limits is not None:
            self.take_default_limits(source.limits, source.spot)
            return
        general = self._checked(GENERAL, source.general, "", BUILT_IN)
        if (store := general.get("store")) is not None:
            self._check_store(store)
        self.values |= general
        self.values |= self._checked(POLICY, source.policy, source.section, names("policy"))

    def take_entries(self, source: Source) -> None:
        """Merge a source's entries over the earlier ones, key by key."""
        if source.limits is not None:
            self.take_domain_limits(source.limits, entry_name)
            return
        seen: dict[str, Spot] = {}
        for number, item in enumerate(self._items(source.allowlist, "allowlist")):
            section, given, name = self._entry(ENTRY, item, f"allowlist[{number}]", names("policy", "entry"))
            if name is not None and self._is_new(name, item.spot, section, seen):
                self._put(name, given)
        seen = {}
        for number, item in enumerate(self._items(source.denylist, "denylist")):
            section, given, name = self._entry(DENIED, item, f"denylist[{number}]", ("domain",))
            if name is not None and self._is_new(name, item.spot, section, seen):
                self.denied.setdefault(name, given["domain"])

    def _put(self, name: str, given: dict[str, Given]) -> None:
        said = self._said.setdefault(name, [])
        said.append(given)
        self.entries[name] = _joined(said)

    def _entry(
        self, adapter: TypeAdapter[Any], item: Value, section: str, known: Iterable[str]
    ) -> tuple[str, dict[str, Given], str | None]:
        """Check one entry of a list; return its label, its values and its name (None if invalid)."""
        data = {"domain": item} if isinstance(item.data, str) else item.data
        if not isinstance(data, dict):
            rule = "a domain, or a mapping that has one, as - domain: example.org"
            self.complaints.broken(item.spot, "", section, item.plain(), rule)
            return section, {}, None
        domain = data["domain"].data if "domain" in data else None
        if isinstance(domain, str):
            section = f"{section} {_quoted(domain)}"
        given = self._checked(adapter, data, section, known, item.spot)
        if "domain" not in given or not isinstance(domain, str):
            return section, {}, None
        try:
            return section, given, entry_name(domain)
        except InvalidDomain as error:
            bare = domain.removeprefix("*.")
            hint = f" An entry holds for all hosts under it: write {bare!r}." if bare != domain else ""
            self.complaints.add(given["domain"].spot, section, f"{error}{hint}")
            return section, {}, None

    def _is_new(self, name: str, spot: Spot, section: str, seen: dict[str, Spot]) -> bool:
        if name in seen:
            first = "" if seen[name].line is None else f", first in line {seen[name].line}"
            self.complaints.add(spot, section, f"{name} is given twice{first}. Make one entry of the two.")
            return False
        seen[name] = spot
        return True

    def take_default_limits(self, root: Mapping[str, Value], spot: Spot) -> None:
        """Merge the default of the rate limiter's JSON file (L7)."""
        version = root["version"].data if "version" in root else None
        if version != "1.0":
            text = "version is missing" if version is None else f"version = {shown(version)} is not known here"
            self.complaints.add(spot, "", f'{text}. Write "version": "1.0".')
        for name, value in root.items():
            if name not in LIMIT_SECTIONS:
                self.complaints.unknown(value.spot, "", name, sorted(LIMIT_SECTIONS), elsewhere=False)
        if "default_config" in root:
            self.values |= self._limits(root["default_config"], "default_config")

    def take_domain_limits(self, root: Mapping[str, Value], name_of: Callable[[str], str]) -> None:
        """Merge the domains of the rate limiter's JSON file."""
        seen: dict[str, Spot] = {}
        for domain, value in (self._mapping(root["domains"], "domains") if "domains" in root else {}).items():
            section = f"domains {_quoted(domain)}"
            given = self._limits(value, section)
            try:
                if self._is_new(name := name_of(domain), value.spot, section, seen):
                    self._put(name, given)
            except InvalidDomain as error:
                self.complaints.add(value.spot, section, str(error))

    def _limits(self, value: Value, section: str) -> dict[str, Given]:
        given = self._checked(LIMITS, self._mapping(value, section), section, LIMIT_NAMES)
        return {LIMIT_NAMES[name]: each for name, each in given.items()}

    # --- Checking --------------------------------------------------------------------------------------------------

    def _checked(
        self,
        adapter: TypeAdapter[Any],
        section: Mapping[str, Value],
        title: str,
        known: Iterable[str],
        spot: Spot = NOWHERE,
    ) -> dict[str, Given]:
        """Check the values of one section; report invalid values and return the valid ones."""
        plain = {name: value.plain() for name, value in section.items()}
        try:
            good = adapter.validate_python(plain)
        except ValidationError as error:
            order = [*section, *known]  # the file's order
            wrong = {str(each["loc"][0]) for each in error.errors(include_url=False)}
            empty = {name for name in wrong & section.keys() - {"domain"} if name in known and plain[name] is None}
            if adapter is ENTRY and empty:  # B3: an empty value that the key forbids is no override
                left = {name: value for name, value in section.items() if name not in empty}
                return self._checked(adapter, left, title, known, spot)
            for each in sorted(error.errors(include_url=False), key=lambda each: order.index(str(each["loc"][0]))):
                name, *rest = each["loc"]
                where = section[str(name)].spot if name in section else spot
                if each["type"] == "extra_forbidden":
                    self.complaints.unknown(where, title, str(name), known, elsewhere=adapter is not LIMITS)
                elif each["type"] == "missing":
                    self.complaints.add(where, title, f"{name} is missing. Add a line {name}: example.org.")
                elif rest:
                    label = f"{name}[{rest[0]}]"
                    written = _written(section[str(name)], each["input"], rest[0])
                    self.complaints.broken(where, title, label, written, rule_of(each))
                else:
                    default, written = self.fallback(str(name)), _written(section[str(name)], each["input"])
                    self.complaints.broken(where, title, str(name), written, rule_of(each), default)
            if "domain" in wrong:
                return {}  # an entry without a name cannot be stored
            wrong |= _PAUSES if wrong & _PAUSES else set()  # the pause keys are valid only together
            sound = {name: value for name, value in section.items() if name not in wrong}
            return self._checked(adapter, sound, title, known, spot)
        given = {
            name: Given(good[name], section[name].spot, title, _written(section[name], plain[name])) for name in good
        }
        pause = given.pop("pause", None)
        if pause is not None:
            for name, value in zip(("pause_min", "pause_max"), pause.value, strict=True):
                if name in given:
                    self.complaints.add(given[name].spot, title, f"{name} is given by pause too. Remove one of them.")
                given[name] = Given(value, pause.spot, title, value)
        return given

    def _check_store(self, given: Given) -> None:
        if given.value is None:
            return
        try:
            check_place(given.value)
        except PolicyError as error:
            what = str(error)
            self.complaints.add(given.spot, given.section, what if what.startswith("store = ") else f"store: {what}")

    def _mapping(self, value: Value, title: str) -> dict[str, Value]:
        if isinstance(value.data, dict):
            return value.data
        if value.data is not None:
            what = f"{title} must be settings, not {kind_of(value.data)}. Name each of them under {title}."
            self.complaints.add(value.spot, "", what)
        return {}

    def _items(self, value: Value | None, title: str) -> list[Value]:
        if value is None or value.data is None:
            return []
        if isinstance(value.data, list):
            return value.data
        what = f"{title} must be a list, not {kind_of(value.data)}. Begin each entry with a dash."
        self.complaints.add(value.spot, "", what)
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
        return keys()[name].default if name in keys() and keys()[name].scope != "entry" else ...

    # --- Policies --------------------------------------------------------------------------------------------------

    def policy(self, base: Policy, given: Mapping[str, Given], key: str | None = None) -> Policy:
        """Return `base` with the given changes; report values that contradict each other."""
        changes = {keys()[name].field: each.value for name, each in given.items() if keys()[name].scope == "policy"}
        if key is not None:
            changes["key"] = key
        if not changes:
            return base
        low, high = changes.get("pause_min", base.pause_min), changes.get("pause_max", base.pause_max)
        if high < low:
            name = "pause_min" if "pause_min" in given else "pause_max"
            rule = f"at most pause_max, {high:g}" if name == "pause_min" else f"at least pause_min, {low:g}"
            self._misfit(name, given, f"{rule}. Give both, as pause: [least, largest]")
            return base
        try:
            policy = base.replace(**changes)
        except PolicyError as error:
            name, _, rest = str(error).partition(" = ")
            name = next((key.name for key in keys().values() if key.field == name), name)
            self._misfit(name, given, rest.partition(" must be ")[2].removesuffix("."))
            return base
        self._warn(policy, given)
        return policy

    def _misfit(self, name: str, given: Mapping[str, Given], rule: str) -> None:
        blamed = given.get(name)
        other = next(iter(given.values())) if blamed is None else blamed
        written = self.fallback(name) if blamed is None else blamed.written
        self.complaints.broken(other.spot, other.section, name, written, rule)

    def _warn(self, policy: Policy, given: Mapping[str, Given]) -> None:
        """Warn about valid but unusual values (L6, Q4)."""
        blamed = given.get("burst") or given.get("qps")
        if blamed is not None and policy.qps is not None and 1 < policy.burst > policy.qps * 60:
            what = (
                f"burst = {policy.burst:g} is more than a minute's worth of requests "
                f"({policy.qps:g} a second make {policy.qps * 60:g}). A site may take such a burst for an attack."
            )
            self.complaints.warn(blamed.spot, blamed.section, what)
        cooldown = given.get("breaker_cooldown")
        if cooldown is not None and policy.breaker and policy.breaker_cooldown < LEAST_COOLDOWN:
            what = (
                f"breaker_cooldown = {shown(cooldown.written)} is below {LEAST_COOLDOWN} s. "
                "A site that is failing, or has had enough of us, may need longer."
            )
            self.complaints.warn(cooldown.spot, cooldown.section, what)


def _joined(said: list[dict[str, Given]]) -> dict[str, Given]:
    """Merge the values of several sources for one entry, key by key; the last source wins.

    Only the last `limited` counts; earlier ones lose the values they implied.
    """
    last = max((number for number, given in enumerate(said) if "limited" in given), default=None)
    entry: dict[str, Given] = {}
    for number, given in enumerate(said):
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
