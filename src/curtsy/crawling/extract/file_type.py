"""File types by the ending of a URL's path: those that are no pages, and those wanted anyway."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from curtsy.core.errors import PolicyError

Files = Literal["pages", "all"] | tuple[str, ...]
"""Wanted files: `pages`, `all`, or a tuple of endings, with their dots, wanted besides pages."""

NO_PAGES = frozenset(
    f".{ending}"
    for endings in (
        "avif bmp gif heic heif ico jfif jpe jpeg jpg jxl png psd svg svgz tif tiff webp",
        "aac aif aiff au flac m4a mid midi mp3 oga ogg opus ra wav wma",
        "3gp asf avi f4v flv m3u8 m4v mkv mov mp4 mpeg mpg ogv qt rm swf vob webm wmv",
        "eot otf ttf woff woff2",
        "7z apk bz2 cab deb dmg exe gz img iso jar msi pkg rar rpm tar tbz2 tgz txz war whl xz z zip zst",
        "css js map mjs wasm",
        "bin class dat db dll parquet pyc so sqlite",
        "doc docm docx dot dotx eps epub mobi odg odp ods odt pdf pps ppsx ppt pptm pptx ps rtf xls xlsb xlsm xlsx",
    )
    for ending in endings.split()
)
"""Endings of images, sound, video, fonts, archives, scripts, styles, data and documents."""

_ENDING = re.compile(r"\.[a-z0-9_+~-]+")


def ending_of(url: str) -> str:
    """Return the ending of a canonical URL's path, with its dot, in lower case; empty if it has none."""
    end = url.find("?")
    if end < 0:
        end = len(url)
    slash = url.rfind("/", 0, end)
    dot = url.rfind(".", slash, end)
    # /wiki/File:Picture.jpg is the page about a picture.
    return "" if dot < 0 or url.find(":", slash, dot) > 0 else url[dot:end].lower()


def file_types(given: Sequence[str]) -> Files:
    """Parse `pages`, `all` or endings (`.pdf`, `pdf`, `*.PDF`). Raise PolicyError for others."""
    match list(given):
        case [] | ["pages"]:
            return "pages"
        case ["all"]:
            return "all"
    endings = sorted({"." + str(each).strip().lower().lstrip("*").lstrip(".") for each in given})
    for ending in endings:
        if not _ENDING.fullmatch(ending):
            raise PolicyError(f'files: {ending!r} is no ending. Give one such as ".pdf", or "pages" or "all".')
    return tuple(endings)
