"""Logs: JSON lines on standard error, secrets masked (N1).

    log = create_logger("crawler")
    log.info("Page fetched", url="https://example.org/", status=200)
    log.info("Page fetched", {"url": "https://example.org/", "status": 200})  # the same

each write

    {"ts":"2026-11-15T08:00:00.000Z","level":"info","component":"crawler","msg":"Page fetched","url":…,"status":200}

The library itself speaks through the standard logger `curtsy` (`library_logger`) and prints nothing uninvited; the
command line turns those records into the same lines (`install_json_logging`), or on a terminal into readable ones
(`cli/logs.py`).
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
from curtsy.core.secrets import mask_line, mask_url

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
"""The levels by name, least first."""

LEVEL_VARIABLES = ("CURTSY_LOG_LEVEL", "LOG_LEVEL")
"""Where the least level shown is read from; the first that is set wins."""

_OTHER_NAMES = {"trace": "debug", "warning": "warn", "critical": "error", "fatal": "error"}


def level_named(name: str) -> str | None:
    """The level that `name` means, in any case and by its other usual names (`WARNING`); None if it means none."""
    name = name.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    return name if name in LEVELS else None


# --- Lines ---------------------------------------------------------------------------------------------------------

_RESERVED = frozenset(("ts", "level", "component", "msg"))
_encode = msgspec.json.Encoder(enc_hook=repr).encode


class Stream(Protocol):
    """What lines can be written to."""

    def write(self, text: str, /) -> object:
        """Take a text."""
        ...

    def flush(self) -> object:
        """Pass on what was taken."""
        ...


def _line(at: int, level: str, component: str, msg: str, fields: Mapping[str, Any]) -> str:
    if not _RESERVED.isdisjoint(fields):
        fields = {name + "_" if name in _RESERVED else name: value for name, value in fields.items()}
    line = mask_line(_json({"ts": _stamp(at), "level": level, "component": component, "msg": msg, **fields}))
    # JSON may hold as it is what a terminal acts on (U+009B begins an escape) or does not show.
    return line if line.isascii() else visible(line, is_json=True)


def _json(entry: dict[str, Any]) -> str:
    try:
        return _encode(entry).decode()
    except Exception:  # a lone surrogate, a loop, a key that is no text, a repr that raises: the line matters more
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


_second = (-1, "")  # the last second that was written out: most lines share it with the one before


def _stamp(at: int) -> str:
    """Nanoseconds since 1970 as ISO 8601, UTC, in milliseconds."""
    global _second
    seconds, rest = divmod(at, 1_000_000_000)
    known, text = _second
    if known != seconds:
        text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(seconds))
        _second = (seconds, text)
    return f"{text}{rest // 1_000_000:03d}Z"


def _write(line: str, stream: Stream | None) -> None:
    """Write a line whole, by one write; a stream that is closed or broken is nobody's problem here."""
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
        target.flush()  # what others wrote goes first
        data = line.encode()
        while data:  # more than once only where a pipe is nearly full
            data = data[os.write(number, data) :]
    except (OSError, ValueError):
        pass


def _number_of(stream: object) -> int | None:
    """The file behind a stream, or None for one that is only in memory."""
    fileno = getattr(stream, "fileno", None)
    try:
        return None if fileno is None else int(fileno())
    except io.UnsupportedOperation:
        return None


# --- Our own logger ------------------------------------------------------------------------------------------------


class Logger:
    """Writes JSON lines for one component. Never raises, whatever it is given.

    Further fields are keywords, or a mapping as the second argument, or both: `log.info("Fetched", {"status": 200})`.
    A keyword wins over a field of the mapping with the same name.
    """

    def __init__(self, component: str, *, level: str | None = None, stream: Stream | None = None) -> None:
        self.component = component
        self._stream = stream
        self._least = LEVELS["info"]
        self.set_level(level)

    def set_level(self, level: str | None = None) -> None:
        """Set the least level shown; None reads it from the environment anew. A bad one means info, and is told."""
        self._least, complaint = _least(level)
        if complaint:
            self.warn(complaint)

    def debug(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Tell what only somebody who looks for a fault wants to know."""
        if self._least <= logging.DEBUG:
            _write(_line(time.time_ns(), "debug", self.component, msg, _joined(more, fields)), self._stream)

    def info(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Tell what happens."""
        if self._least <= logging.INFO:
            _write(_line(time.time_ns(), "info", self.component, msg, _joined(more, fields)), self._stream)

    def warn(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Tell what somebody should look at."""
        if self._least <= logging.WARNING:
            _write(_line(time.time_ns(), "warn", self.component, msg, _joined(more, fields)), self._stream)

    def error(self, msg: str, more: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        """Tell what went wrong."""
        if self._least <= logging.ERROR:
            _write(_line(time.time_ns(), "error", self.component, msg, _joined(more, fields)), self._stream)


def _joined(more: object, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a mapping and those of keywords as one."""
    if more is None:
        return fields
    try:
        return {
            **({str(name): more[name] for name in more} if isinstance(more, Mapping) else {"value": more}),
            **fields,
        }
    except Exception:  # a mapping that cannot be read
        return {"value": more, **fields}


_told: set[str] = set()


def _least(level: str | None) -> tuple[int, str | None]:
    """The number of a level, or of the environment's; and what to say about a bad one, once in a process."""
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
    """A logger that writes JSON lines for `component` to standard error (N1).

    The least level shown is `level`, else that of `CURTSY_LOG_LEVEL` or `LOG_LEVEL`, else info.
    """
    return Logger(component, level=level, stream=stream)


# --- The standard library's ----------------------------------------------------------------------------------------

_ROOT = logging.getLogger("curtsy")
_ROOT.addHandler(logging.NullHandler())  # else the standard library prints our warnings where nobody asked for them


class _Message:
    """A message and its fields, as one text for whoever formats records in the usual way."""

    __slots__ = ("fields", "msg")

    def __init__(self, msg: str, fields: dict[str, Any]) -> None:
        self.msg = msg
        self.fields = fields

    def __str__(self) -> str:
        if not self.fields:
            return mask_url(self.msg)
        return f"{mask_url(self.msg)} {mask_line(_json(self.fields))}"


class LibraryLogger:
    """What the library itself logs through: a standard logger that takes fields."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def hears(self, level: int) -> bool:
        """Whether anybody listens at this level: ask before making fields that cost something."""
        return self._logger.isEnabledFor(level)

    def debug(self, msg: str, /, **fields: Any) -> None:
        """Tell what only somebody who looks for a fault wants to know."""
        self._log(logging.DEBUG, msg, fields)

    def info(self, msg: str, /, **fields: Any) -> None:
        """Tell what happens."""
        self._log(logging.INFO, msg, fields)

    def warning(self, msg: str, /, **fields: Any) -> None:
        """Tell what somebody should look at."""
        self._log(logging.WARNING, msg, fields)

    def error(self, msg: str, /, **fields: Any) -> None:
        """Tell what went wrong."""
        self._log(logging.ERROR, msg, fields)

    def _log(self, level: int, msg: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, _Message(msg, fields), stacklevel=3)


def library_logger(name: str) -> LibraryLogger:
    """The library's logger for one part, `curtsy.<name>`: silent until the program that uses curtsy listens."""
    return LibraryLogger(_ROOT.getChild(name))


class JsonHandler(logging.Handler):
    """Turns the standard library's records into the same JSON lines.

    Fields are those given to a `LibraryLogger`, or `extra={"fields": {…}}`; an exception is told as `traceback`.
    """

    def __init__(self, level: int = logging.NOTSET, *, stream: Stream | None = None) -> None:
        super().__init__(level)
        self.stream = stream
        """Where lines go; None for standard error."""

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
        at = round(record.created * 1000) * 1_000_000  # a float has no more to tell
        _write(self.shown(_line(at, name, component, msg, fields)), self.stream)

    def shown(self, line: str) -> str:
        """The line as it is written; whoever shows it otherwise gets it with its secrets masked."""
        return line


def _text_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments do not fit the message, which is no reason to lose it
        return f"{_legible(record.msg)} {_legible(record.args)}"


def install_json_logging(level: str | None = None, *, stream: Stream | None = None) -> JsonHandler:
    """Write all that the library tells as JSON lines to standard error; called again, replace the former handler.

    The least level shown is `level`, else that of the environment, else info.
    """
    handler = JsonHandler(stream=stream)
    install(handler, level)
    return handler


def install(handler: JsonHandler, level: str | None = None) -> None:
    """Have a handler write what the library tells, in the place of the former one."""
    for former in _ROOT.handlers[:]:
        if isinstance(former, JsonHandler):
            _ROOT.removeHandler(former)
    _ROOT.addHandler(handler)
    least, complaint = _least(level)
    _ROOT.setLevel(least)
    if complaint:
        library_logger("log").warning(complaint)
