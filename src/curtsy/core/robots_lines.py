"""Lines of a robots.txt: limits of length, line ends and compact storage.

Octets are held in `str`, one character each, as in `longest_match.py`. Numbers in comments are sections of RFC 9309.
"""

import re
from array import array
from collections.abc import Sequence
from itertools import accumulate

from curtsy.core.longest_match import WHITE

MAX_BYTES = 500 * 1024
"""Most bytes that are read of a file (2.5: at least 500 KiB), cut at the last whole line."""

MAX_LINE = 2083 * 8 - 1
"""Most octets that are read of a line, as in Google's parser; the RFC sets no limit."""

_marks = re.compile("(?:\xef\xbb\xbf)*(?:\xef\xbb?)?").match  # an incomplete mark is skipped as in Google's parser


class Texts:
    """Packed lines of a file: their numbers, and all their octets in one string."""

    __slots__ = ("_ends", "_octets", "numbers", "size")

    def __init__(self, numbers: Sequence[int], lines: list[str]) -> None:
        chosen = list(map(["", *lines].__getitem__, numbers))
        self.numbers = array("I", numbers)
        self._octets = "".join(chosen)
        self._ends = array("I", accumulate(map(len, chosen)))
        self.size = len(self._octets) + 8 * len(numbers)

    def __len__(self) -> int:
        return len(self.numbers)

    def text(self, place: int) -> str:
        """Return the line at an index."""
        return text_of(self._octets[self._ends[place - 1] if place else 0 : self._ends[place]])


def lines_of(body: bytes) -> tuple[list[str], list[tuple[int, str]]]:
    """Split a file into lines without comments, one character per octet.

    Also return remarks about the whole file, each with a line number.
    """
    remarks = []
    read = whole_lines(body)
    if wide := _wide_encoding(body[:4]):
        remarks.append((1, f"the file is in {wide.upper()}, not UTF-8 (RFC 9309, 2.3); it is read all the same"))
        text = read.decode(wide, "replace").encode().decode("latin-1")
    else:
        text = read.decode("latin-1")
    if mark := _marks(text):
        text = text[mark.end() :]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")  # 2.2: EOL is CR, LF or both, nothing else
    if len(body) > MAX_BYTES:
        remarks.append((text.count("\n") + 1, f"only the first {MAX_BYTES} bytes of {len(body)} are read"))
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        remarks.append((number, "a NUL byte; the rest of its line is not read"))  # as in Google's parser
        text = text.replace("\0", "#")
    first, *commented = text.split("#")
    lines = "".join((first, *(part[part.find("\n") :] for part in commented if "\n" in part))).split("\n")
    if len(text) > MAX_LINE and max(map(len, lines)) > MAX_LINE:
        long = [number for number, line in enumerate(lines, 1) if len(line) > MAX_LINE]
        remarks += [(number, f"only the first {MAX_LINE} bytes of this line are read") for number in long]
        lines = [line[:MAX_LINE] for line in lines]
    return lines, remarks


def whole_lines(body: bytes, *, is_cut: bool = False) -> bytes:
    """Return the part of a file that is read: at most 500 KiB.

    If the file is longer or `is_cut`, an incomplete last line is dropped. Half a line may have the opposite meaning:
    `Allow: /zzz` cut short is `Allow: /`.
    """
    if len(body) <= MAX_BYTES and not is_cut:
        return body
    wide = _wide_encoding(body[:4])
    unit = 2 if wide else 1
    read = body[: MAX_BYTES + unit]  # the next character may end the last line
    end = max(_last(each.encode(wide or "latin-1"), read) for each in "\r\n") + unit
    return read[: min(end, MAX_BYTES)] if end >= unit else b""


def _last(character: bytes, read: bytes) -> int:
    """Return the index of the last such character, one or two octets long; negative if absent."""
    unit, at = len(character), len(read)
    while (at := read.rfind(character, 0, at)) >= 0 and at % unit:
        at += unit - 1
    return at if at >= 0 else -unit


def _wide_encoding(start: bytes) -> str | None:
    """Return the UTF-16 codec by the mark, or by the NUL bytes beside the first two letters; else None."""
    if start[:2] == b"\xff\xfe" or (start[1::2] == b"\0\0" and 0 not in start[::2]):
        return "utf-16-le"
    if start[:2] == b"\xfe\xff" or (start[::2] == b"\0\0" and 0 not in start[1::2]):
        return "utf-16-be"
    return None


def text_of(octets: str) -> str:
    """Return octets as text, without surrounding white space."""
    return octets.strip(WHITE).encode("latin-1").decode("utf-8", "replace")


def shortened(text: str) -> str:
    """Return a text for a message, at most 200 characters long."""
    return text if len(text) <= 200 else f"{text[:199]}…"
