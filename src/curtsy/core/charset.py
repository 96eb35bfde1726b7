"""Detection of a body's encoding, and its text (U12).

Sources, in order:

1. the byte order mark, because other encodings do not begin with one. (The requirement names the header first. Where
   they differ, the mark is right, and the Encoding Standard prefers it, too.)
2. the `charset` of the Content-Type,
3. a declaration in the first 1024 bytes: `<meta charset>`, `<meta http-equiv>`, `<?xml encoding?>`,
4. a later `<meta>`, if the body is not ASCII: browsers restart there (HTML Standard, 13.2.3.4),
5. the bytes: valid UTF-8 is UTF-8, otherwise charset-normalizer judges a sample.

Names of encodings are the labels of the Encoding Standard only (`latin1` is Windows-1252, `gb2312` is GB18030,
`shift_jis` is Windows' own). A page cannot select Python's `zip` or `unicode_escape`. Nothing here raises, and the work
per body is bounded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

PRESCAN = 1024
"""Bytes searched for a declaration (HTML Standard, 13.2.3.2)."""

FURTHER = 262_144
"""Bytes searched for a later declaration, outside of comments, scripts and styles."""

SAMPLE = 4096
"""Bytes judged if there is no declaration."""

FALLBACK = "windows-1252"
"""Encoding if neither a declaration nor the bytes determine one."""

_CHUNK = 65_536

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

# The labels of the Encoding Standard, 4.2, by the nearest codec of Python.
_LABELS = {
    label: codec
    for codec, labels in {
        "utf-8": "utf8 utf-8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8",
        "utf-16-be": "utf-16be unicodefffe",
        "utf-16-le": "utf-16 utf-16le ucs-2 unicode unicodefeff csunicode iso-10646-ucs-2",
        "windows-1252": "windows-1252 cp1252 x-cp1252 ansi_x3.4-1968 ascii us-ascii cp819 csisolatin1 ibm819 "
        "iso-8859-1 iso-ir-100 iso8859-1 iso88591 iso_8859-1 iso_8859-1:1987 l1 latin1 latin-1 x-user-defined",
        "windows-1250": "windows-1250 cp1250 x-cp1250",
        "windows-1251": "windows-1251 cp1251 x-cp1251",
        "windows-1253": "windows-1253 cp1253 x-cp1253",
        "windows-1254": "windows-1254 cp1254 x-cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 "
        "iso_8859-9:1989 l5 latin5",
        "windows-1255": "windows-1255 cp1255 x-cp1255",
        "windows-1256": "windows-1256 cp1256 x-cp1256",
        "windows-1257": "windows-1257 cp1257 x-cp1257",
        "windows-1258": "windows-1258 cp1258 x-cp1258",
        "iso8859-2": "iso-8859-2 csisolatin2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
        "iso8859-3": "iso-8859-3 csisolatin3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
        "iso8859-4": "iso-8859-4 csisolatin4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
        "iso8859-5": "iso-8859-5 csisolatincyrillic cyrillic iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
        "iso8859-6": "iso-8859-6 arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6-e "
        "iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987",
        "iso8859-7": "iso-8859-7 csisolatingreek ecma-118 elot_928 greek greek8 iso-ir-126 iso8859-7 iso88597 "
        "iso_8859-7 iso_8859-7:1987 sun_eu_greek",
        "iso8859-8": "iso-8859-8 csiso88598e csiso88598i csisolatinhebrew hebrew iso-8859-8-e iso-8859-8-i iso-ir-138 "
        "iso8859-8 iso88598 iso_8859-8 iso_8859-8:1988 logical visual",
        "iso8859-10": "iso-8859-10 csisolatin6 iso-ir-157 iso8859-10 iso885910 l6 latin6",
        "iso8859-13": "iso-8859-13 iso8859-13 iso885913",
        "iso8859-14": "iso-8859-14 iso8859-14 iso885914",
        "iso8859-15": "iso-8859-15 csisolatin9 iso8859-15 iso885915 iso_8859-15 l9",
        "iso8859-16": "iso-8859-16",
        "cp866": "ibm866 866 cp866 csibm866",
        "cp874": "windows-874 dos-874 iso-8859-11 iso8859-11 iso885911 tis-620",
        "koi8-r": "koi8-r cskoi8r koi koi8 koi8_r",
        "koi8-u": "koi8-u koi8-ru",
        "mac-roman": "macintosh csmacintosh mac x-mac-roman",
        "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
        "gb18030": "gb18030 gbk gb2312 gb_2312 gb_2312-80 chinese csgb2312 csiso58gb231280 iso-ir-58 x-gbk",
        "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
        "euc-jp": "euc-jp cseucpkdfmtjapanese x-euc-jp",
        "iso2022-jp-2": "iso-2022-jp csiso2022jp",
        "cp932": "shift_jis shift-jis sjis csshiftjis ms932 ms_kanji windows-31j x-sjis",
        "cp949": "euc-kr cseuckr csksc56011987 iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 "
        "ksc_5601 windows-949",
    }.items()
    for label in labels.split()
}

# Encodings in which pages without a declaration still are.
_CANDIDATES = [
    *("cp932", "euc_jp", "gb18030", "big5", "cp949"),
    *("cp1252", "cp1251", "koi8_r", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256", "cp874", "iso8859_2", "cp866"),
]

# Possessive, hence linear: a page may contain 256 KiB of blanks there.
_CHARSET = re.compile(r"""charset\s*+=\s*+["']?\s*+([^\s"';,]+)""", re.IGNORECASE)
_XML = re.compile(rb"""<\?xml\s[^>]*?encoding\s*=\s*["']\s*([A-Za-z0-9._:-]+)""")
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_META = re.compile(rb"""<meta[\s/]((?:[^>"']|"[^"]*+"|'[^']*+')*+)""", re.IGNORECASE)
_NO_MARKUP = re.compile(rb"<!--.*?(?:-->|\Z)|<(script|style|title|textarea)\b.*?(?:</\1|\Z)", re.DOTALL | re.IGNORECASE)
_ATTRIBUTE = re.compile(rb"""([^\s"'>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")


def decode(body: bytes, content_type: str | None = None) -> tuple[str, str]:
    """Return the text of a body, and its encoding by a name that `bytes.decode()` accepts.

    Invalid bytes become U+FFFD. A byte order mark is dropped.
    """
    codec, begin = _encoding(body, content_type)
    return body[begin:].decode(codec, "replace"), codec


def octets(body: bytes, content_type: str | None, most: int) -> tuple[str, str]:
    """Return a body as UTF-8 read as Latin-1, one character per octet, and its encoding.

    This takes one byte per octet; text takes four bytes per character if it has a single emoji. The result has at most
    `most` octets.
    """
    codec, begin = _encoding(body, content_type)
    rest = memoryview(body)[begin:]
    if codec == "utf-8":
        return str(rest[:most], "latin-1"), codec
    parts, length = [], 0
    for text in codecs.iterdecode(_chunks(rest), codec, "replace"):
        parts.append(text.encode("utf-8", "replace").decode("latin-1"))
        length += len(parts[-1])
        if length >= most:
            break
    return "".join(parts)[:most], codec


def _chunks(body: bytes | memoryview) -> Iterator[bytes]:
    """Yield a body in parts: decoded as a whole, it takes up to four times the memory."""
    for place in range(0, len(body), _CHUNK):
        yield bytes(body[place : place + _CHUNK])


def _encoding(body: bytes, content_type: str | None) -> tuple[str, int]:
    """Return the codec of a body, and the offset of its text behind a byte order mark."""
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return codec, len(mark)
    return declared(content_type) or _said_by_page(body, content_type) or detect(body), 0


def declared(content_type: str | None) -> str | None:
    """Return the codec that a Content-Type names; None if it names no known codec."""
    if content_type is None:
        return None
    found = _CHARSET.search(content_type[:1000])
    return None if found is None else codec_of(found[1])


def codec_of(label: str) -> str | None:
    """Return the codec for a label of the Encoding Standard, in any case; None if unknown."""
    return _LABELS.get(label.strip().lower())


def _said_by_page(body: bytes, content_type: str | None) -> str | None:
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind and not kind.endswith(("html", "xml", "/*", "octet-stream")):
        return None  # a text or a script that quotes a page does not declare its own encoding
    # XML 1.0, appendix F: UTF-16 without a mark has a 0 in every other byte.
    if body.startswith(b"<\0?\0x\0"):
        return "utf-16-le"
    if body.startswith(b"\0<\0?\0x"):
        return "utf-16-be"
    head = body[:PRESCAN]
    label = _from_meta(_COMMENT.sub(b" ", head)) if not kind.endswith("/xml") else None
    if label is None:
        found = _XML.match(head.lstrip(b" \t\r\n"))
        label = None if found is None else found[1].decode("ascii")
    if label is None and kind.endswith("html") and not body.isascii():
        label = _from_meta(_NO_MARKUP.sub(b" ", body[:FURTHER]))
    codec = None if label is None else codec_of(label)
    # A declaration that is readable as ASCII is not in UTF-16 (HTML Standard, 13.2.3.2, step 15).
    return "utf-8" if codec in ("utf-16-le", "utf-16-be") else codec


def _from_meta(head: bytes) -> str | None:
    for tag in _META.finditer(head):
        values: dict[bytes, str] = {}
        for name, *forms in _ATTRIBUTE.findall(tag[1]):
            values.setdefault(name.lower(), b"".join(forms).decode("latin-1"))
        label: str | None = values.get(b"charset")
        if label is None and values.get(b"http-equiv", "").strip().lower() == "content-type":
            found = _CHARSET.search(values.get(b"content", ""))
            label = None if found is None else found[1]
        if label is not None and codec_of(label) is not None:
            return label
    return None


def detect(body: bytes) -> str:
    """Return the most likely codec of bytes without a declaration."""
    if body.isascii():
        return "iso2022-jp-2" if b"\x1b$" in body[:65_536] else "utf-8"
    if _is_utf_8(body):
        return "utf-8"
    sample = _sample(body)
    text = sample.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    foreign = sum(letter > "\x7f" for letter in text) - damaged
    if foreign > 4 * damaged:
        return "utf-8"  # with a few broken letters: text in other encodings does not look like UTF-8 by chance
    return _japanese(sample) or _filters(sample)


def _is_utf_8(body: bytes) -> bool:
    """Return whether a body is valid UTF-8."""
    try:
        for _ in codecs.iterdecode(_chunks(body), "utf-8"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _sample(body: bytes) -> bytes:
    """Return a sample of a body's words without markup, from the first word outside ASCII."""
    # No regular expression: hostile markup takes no longer than any other.
    parts = (part.partition(b">") for part in body[:262_144].split(b"<"))
    words = b" ".join(rest for tag, _, rest in parts if not tag[:6].lower().startswith((b"script", b"style")))
    if words.isascii():
        words = body
    first = re.search(rb"[\x80-\xff]", words)
    start = 0 if first is None else first.start()
    return b" ".join(words[start : start + 2 * SAMPLE].split())[:SAMPLE]


def _japanese(sample: bytes) -> str | None:
    """Return the codec in which a fifth of the letters outside ASCII are kana, or None.

    No text in another language has so many by chance.
    """
    for codec in ("cp932", "euc-jp"):
        try:
            text = codecs.getincrementaldecoder(codec)().decode(sample)  # the last letter may be incomplete
        except UnicodeDecodeError:
            continue
        foreign = [letter for letter in text if letter > "\x7f"]
        if foreign and 5 * sum("\u3041" <= letter <= "\u30ff" for letter in foreign) >= len(foreign):
            return codec
    return None


def _filters(sample: bytes) -> str:
    from charset_normalizer import from_bytes  # slow to import, and rarely needed

    try:
        best = from_bytes(sample, cp_isolation=_CANDIDATES, preemptive_behaviour=False, steps=3, chunk_size=512).best()
    except Exception:  # U12: never raise, whatever the input
        return FALLBACK
    if best is None or str(best) == sample.decode(FALLBACK, "replace"):
        return FALLBACK  # the most common one of those that give the same text
    return codec_of(best.encoding.replace("_", "-")) or best.encoding
