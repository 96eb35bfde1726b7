"""Logs: JSON lines on standard error, secrets masked (N1).

    log = create_logger("crawler")
    log.info("Page fetched", url="https://example.org/", status=200)
    log.info("Page fetched", {"url": "https://example.org/", "status": 200})  # the same

each write

    {"ts":"2026-11-15T08:00:00.000Z","level":"info","component":"crawler","msg":"Page fetched","url":…,"status":200}

The library itself logs to the standard logger `curtsy` (`library_logger`) and prints nothing by default. The command
line writes those records as the same lines (`install_json_logging`), or on a terminal as readable text
(`cli/console.py`).
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from curtsy.core.escape import visible
from curtsy.core.masking import mask_line, mask_url

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
"""Levels by name, lowest first."""

LEVEL_VARIABLES = ("CURTSY_LOG_LEVEL", "LOG_LEVEL")
"""Environment variables of the lowest level shown; the first that is set wins."""

_OTHER_NAMES = {"trace": "debug", "warning": "warn", "critical": "error", "fatal": "error"}


def level_named(name: str) -> str | None:
    """Return the level that `name` means, in any case or by an alias (`WARNING`); None if unknown."""
    name = name.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in LEVELS else None


# --- Lines ---------------------------------------------------------------------------------------------------------

_RESERVED = frozenset(("ts", "level", "component", "msg"))
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class Stream(Protocol):
    """Target for lines."""

    def write(self, text: str, /) -> object:
        """Write a text."""
        ...

    def flush(self) -> object:
        """Flush the buffer."""
        ...


def _line(at: int, level: str, component: str, msg: str, fields: Mapping[str, Any]) -> str:
    if not _RESERVED.isdisjoint(fields):
        fields = {name + "_" if name in _RESERVED else name: value for name, value in fields.items()}
    line = mask_line(_json({"ts": _stamp(at), "level": level, "component": component, "msg": msg, **fields}))
    # JSON may contain raw characters that a terminal acts on (U+009B begins an escape) or does not show.
    return line if line.isascii() else visible(line, is_json=True)


def _json(entry: dict[str, Any]) -> str:
    try:
        return _encode(entry).decode()
    except Exception:  # a lone surrogate, a cycle, a non-text key or a failing repr must not lose the line
        return _encode({_legible(name): _encodable(value) for name, value in entry.items()}).decode()


def _encodable(value: object) -> object:
    try:
        _encode(value)
    except Exception:
        return _legible(value)
    return value


def _legible(value: object) -> str:
    try:
        text = value if isinstance(value, str) else repr(value)
        return text.encode("utf-8", "backslashreplace").decode()
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"


_second = (-1, "")  # cache of the last second formatted: most lines share it with the line before


def _stamp(at: int) -> str:
    """Format nanoseconds since 1970 as ISO 8601 in UTC, with milliseconds."""
    global _second
    seconds, rest = divmod(at, 1_000_000_000)
    known, text = _second
    if known != seconds:
        text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(seconds))
        _second = (seconds, text)
    return f"{text}{rest // 1_000_000:03d}Z"


def _write(line: str, stream: Stream | None) -> None:
    """Write a line by one write; ignore a closed or broken stream."""
    target = sys.stderr if stream is None else stream
    if target is None:  # a process without standard error
        return
    line += "\n"
    try:
        number = _number_of(target)
        if number is None:
            target.write(line)
            target.flush()
            return
        target.flush()  # earlier buffered text goes first
        data = line.encode()
        while data:  # repeats only if a pipe is nearly full
            data = data[os.write(number, data) :]
    except (OSError, ValueError):
        pass


def _number_of(stream: object) -> int | None:
    """Return the file descriptor of a stream; None for a stream in memory."""
    try:
        return int(stream.fileno()) if hasattr(stream, "fileno") else None
    except io.UnsupportedOperation:
        return None


# --- JSON logger ---------------------------------------------------------------------------------------------------


class Logger:
    """Logger that writes JSON lines for one component. It accepts any value and never raises.

    Fields are keywords, or a mapping as the second argument, or both: `log.info("Fetched", {"status": 200})`.
    A keyword wins over a field of the mapping with the same name.
    """

    def __init__(self, component: str, *, level: str | None = None, stream: Stream | None = None) -> None:
        self.component = component
        self._stream = stream
        self._least = LEVELS["info"]
        self.set_level(level)

    def set_level(self, level: str | None = None) -> None:
        """Set the lowest level shown; None reads it from the environment.

        An invalid level means info and logs a warning.
        """
        self._least, complaint = _least(level)
        if complaint:
            self.warn(complaint)

    def debug(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Log a detail for debugging."""
        self._log("debug", msg, more, fields)

    def info(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Log an event."""
        self._log("info", msg, more, fields)

    def warn(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Log a condition that needs attention."""
        self._log("warn", msg, more, fields)

    def error(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Log a failure."""
        self._log("error", msg, more, fields)

    def _log(self, level: str, msg: str, more: object, fields: dict[str, Any]) -> None:
        if self._least <= LEVELS[level]:
            _write(_line(time.time_ns(), level, self.component, msg, _joined(more, fields)), self._stream)


def _joined(more: object, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a mapping and of keywords, merged; keywords win."""
    if more is None:
        return fields
    try:
        given = {str(name): more[name] for name in more} if isinstance(more, Mapping) else {"value": more}
        return given | fields
    except Exception:  # a mapping that cannot be read
        return {"value": more, **fields}


_told: set[str] = set()


def _least(level: str | None) -> tuple[int, str | None]:
    """Return the number of `level` or of the environment's level, and a complaint if it is invalid.

    The complaint is None after the first time in a process.
    """
    variable = "level"
    if level is None:
        variable = next((each for each in LEVEL_VARIABLES if os.environ.get(each)), "")
        level = os.environ.get(variable, "info")
    name = level_named(level)
    if name is not None:
        return LEVELS[name], None
    complaint = f"{variable} = {level!r} must be one of {', '.join(LEVELS)}. Using info."
    if complaint in _told:
        return LEVELS["info"], None
    _told.add(complaint)
    return LEVELS["info"], complaint


def create_logger(component: str, *, level: str | None = None, stream: Stream | None = None) -> Logger:
    """Return a logger that writes JSON lines for `component` to standard error (N1).

    The lowest level shown is `level`, else that of `CURTSY_LOG_LEVEL` or `LOG_LEVEL`, else info.
    """
    return Logger(component, level=level, stream=stream)


COMMON = {"is_common": True}
"""Extra of a record about something that all processes of a crawl share; only the crawl's process logs it."""

# --- Standard logger -----------------------------------------------------------------------------------------------

_ROOT = logging.getLogger("curtsy")
_ROOT.addHandler(logging.NullHandler())  # otherwise the standard library prints warnings to standard error


class _Message:
    """Message with its fields, as one text for standard formatters."""

    __slots__ = ("fields", "msg")

    def __init__(self, msg: str, fields: dict[str, Any]) -> None:
        self.msg = msg
        self.fields = fields

    def __str__(self) -> str:
        if not self.fields:
            return mask_url(self.msg)
        return f"{mask_url(self.msg)} {mask_line(_json(self.fields))}"


class LibraryLogger:
    """Standard logger with fields; the library itself uses it."""

    __slots__ = ("_logger", "hears")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self.hears = logger.isEnabledFor
        """Function that returns whether a level is logged; call it before computing expensive fields."""

    def debug(self, msg: str, /, **fields: Any) -> None:
        """Log a detail for debugging."""
        self._log(logging.DEBUG, msg, fields)

    def info(self, msg: str, /, **fields: Any) -> None:
        """Log an event."""
        self._log(logging.INFO, msg, fields)

    def warning(self, msg: str, /, **fields: Any) -> None:
        """Log a condition that needs attention."""
        self._log(logging.WARNING, msg, fields)

    def error(self, msg: str, /, **fields: Any) -> None:
        """Log a failure."""
        self._log(logging.ERROR, msg, fields)

    def notice(self, msg: str, /) -> None:
        """Log a warning that a program without any log handler shows, too, as the standard library does by default."""
        last = logging.lastResort
        if last is None or _has_handler(self._logger) or not self._logger.isEnabledFor(logging.WARNING):
            self._log(logging.WARNING, msg, {})
        else:
            last.handle(self._logger.makeRecord(self._logger.name, logging.WARNING, "", 0, _Message(msg, {}), (), None))

    def _log(self, level: int, msg: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, _Message(msg, fields), stacklevel=3)


def _has_handler(logger: logging.Logger | None) -> bool:
    """Return whether the program handles the records of a logger; the NullHandler of a library does not count."""
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def library_logger(name: str) -> LibraryLogger:
    """Return the library's logger `curtsy.<name>`, silent until the program installs a handler."""
    return LibraryLogger(_ROOT.getChild(name))


class JsonHandler(logging.Handler):
    """Handler that writes the standard library's records as the same JSON lines.

    Fields are those given to a `LibraryLogger`, or `extra={"fields": {…}}`. An exception appears as `traceback`.
    """

    def __init__(self, level: int = logging.NOTSET, *, stream: Stream | None = None) -> None:
        super().__init__(level)
        self.stream = stream
        """Target of the lines; None for standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record as a line."""
        given = record.msg
        if isinstance(given, _Message):
            msg, fields = given.msg, given.fields
        else:
            extra = record.__dict__.get("fields")
            msg, fields = _text_of(record), dict(extra) if isinstance(extra, Mapping) else {}
        if record.exc_info and record.exc_info[1] is not None:
            fields = {**fields, "traceback": "".join(traceback.format_exception(record.exc_info[1]))}
        name = next((name for name, number in reversed(LEVELS.items()) if record.levelno >= number), "debug")
        component = record.name.removeprefix("curtsy.")
        at = round(record.created * 1000) * 1_000_000  # rounded: a float may be just below its millisecond
        _write(self.shown(_line(at, name, component, msg, fields)), self.stream)

    def shown(self, line: str) -> str:
        """Return the line to write. An override gets it with its secrets masked."""
        return line


def _text_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit the message: log both
        return f"{_legible(record.msg)} {_legible(record.args)}"


def install_json_logging(level: str | None = None, *, stream: Stream | None = None) -> JsonHandler:
    """Write the library's log as JSON lines to standard error, and replace an earlier handler.

    The lowest level shown is `level`, else that of the environment, else info.
    """
    handler = JsonHandler(stream=stream)
    install(handler, level)
    return handler


def install(handler: JsonHandler, level: str | None = None) -> None:
    """Install `handler` for the library's log, in place of an earlier one."""
    for former in _ROOT.handlers[:]:
        if isinstance(former, JsonHandler):
            _ROOT.removeHandler(former)
    _ROOT.addHandler(handler)
    least, complaint = _least(level)
    _ROOT.setLevel(least)
    if complaint:
        library_logger("log").warning(complaint)
