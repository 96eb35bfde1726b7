"""What stands in JSON lines, in folders and in the table of what was skipped."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from curtsy.core.record import FetchRecord
from curtsy.core.request import Headers
from curtsy.core.url import Url, parse_url
from curtsy.crawling.outputs.folder import Folder
from curtsy.crawling.outputs.jsonlines import BodyForm, JsonLines, PageEntry, encode, entry_of
from curtsy.crawling.outputs.skipped import SkippedCsv
from curtsy.crawling.outputs.tables import PagesCsv
from curtsy.crawling.results import CrawledPage, SkippedUrl
from tests.crawling.leaves import Leaf, leaves, page
from tests.strategies import ANY

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "reference" / "crawl-page.schema.json").read_text())
RECORD = FetchRecord(
    *("https://example.org/page/1", "https://example.org/page/1", "example.org", "GET", 200, None, 2, 1, 1.5, 1.75),
    *(1234, None, 3, 198, 99, None, 1_800_000_000.0),
)
SECRET_URL = "https://example.org/a?token=s3cret&page=2"


def line_of(given: CrawledPage, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode(entry_of(given, **options)))
    return found


# The schema


@ANY
@given(leaves())
def test_every_line_is_as_the_schema_says(some: list[Leaf]) -> None:
    """Issue 5: a stable schema, documented"""
    filters = jsonschema.Draft202012Validator(SCHEMA)
    for leaf in some:
        if isinstance(leaf, CrawledPage):
            for body in ("none", "text", "base64"):
                filters.validate(line_of(leaf, body=body))


def test_the_schema_has_just_the_fields_that_are_written() -> None:
    """Issue 5"""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    assert tuple(SCHEMA["properties"]) == PageEntry.__struct_fields__
    assert SCHEMA["additionalProperties"] is False
    assert set(SCHEMA["required"]) == set(PageEntry.__struct_fields__) - {
        "extracted",
        "extract_error",
        "main_text",
        "text",
        "body_base64",
    }
    assert all("description" in field for field in SCHEMA["properties"].values())


def test_every_field_is_on_the_reference_page() -> None:
    """Issue 5: documented"""
    text = (ROOT / "docs" / "reference" / "crawl-output.md").read_text()

    assert [name for name in PageEntry.__struct_fields__ if f"| `{name}` |" not in text] == []


# Lines


def test_a_line_says_all_about_a_page(tmp_path: Path) -> None:
    """Issue 5"""
    output = JsonLines(tmp_path / "out.jsonl")
    output.open(None)
    output.page(page(1, b"body", record=RECORD, headers=Headers([("A", "1"), ("a", "2")])))
    output.close()

    [line] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())

    assert line["url"] == line["final_url"] == "https://example.org/page/1"
    assert line["url_sha256"] == hashlib.sha256(b"https://example.org/page/1").hexdigest()
    assert line["sha256"] == hashlib.sha256(b"body").hexdigest()
    assert line["size"] == 4
    assert line["headers"] == {"a": "1, 2"}
    assert line["fetch"] == {"attempts": 2, "retries": 1, "waited": 1.5, "took": 1.75, "bytes": 1234}
    assert {"text", "main_text", "body_base64"}.isdisjoint(line)


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "written"),
    [
        ("grün".encode("latin-1"), "text/html; charset=latin1", "windows-1252", "grün"),
        ("{}".encode("utf-16"), "application/ld+json", None, "{}"),
        (b"", "text/html", "utf-8", ""),
        (b"\x89PNG", "image/png", None, None),
    ],
)
def test_a_body_is_written_as_text_if_it_is_one(
    body: bytes, content_type: str, encoding: str | None, written: str | None
) -> None:
    """Issue 5, U12"""
    given = page(1, body, content_type=content_type, encoding=encoding)

    assert line_of(given, body="text")["text"] == written


def test_a_body_is_written_byte_for_byte_as_base64() -> None:
    """Issue 5: 5 MB bodies too"""
    body = bytes(range(256)) * 20_000

    assert base64.b64decode(line_of(page(1, body), body="base64")["body_base64"]) == body


@pytest.mark.parametrize("body", ["none", "text"])
def test_what_is_no_unicode_spoils_no_line(body: BodyForm) -> None:
    """Issue 5: headers with odd bytes"""
    line = line_of(page(1, b"\xff", title="\ud83d", headers=Headers([("X", "caf\udce9\n")])), body=body)

    assert line["title"] == "\ufffd" * 3
    assert line["headers"] == {"x": "caf\ufffd\ufffd\ufffd\n"}


def test_no_secret_stands_in_a_line() -> None:
    """F62"""
    fields = Headers([("Location", SECRET_URL), ("Set-Cookie", "id=s3cret"), ("Cookie", "s3cret"), ("X", "kept")])
    given = page(
        1,
        b"",
        url=SECRET_URL,
        parent=SECRET_URL,
        canonical=SECRET_URL,
        links=("https://example.org/b?page=1", SECRET_URL),
        headers=fields,
        request_headers=Headers([("Authorization", "s3cret"), ("Referer", SECRET_URL)]),
    )

    line = line_of(given)

    assert "s3cret" not in json.dumps(line)
    assert line["url"] == "https://example.org/a?token=***&page=2"
    assert line["links"][0] == "https://example.org/b?page=1"
    assert line["headers"] == {"location": line["url"], "x": "kept"}
    assert line["url_sha256"] != line_of(page(1, url=line["url"]))["url_sha256"], "masked URLs can be told apart"
    assert line_of(given, mask_secrets=False)["url"] == SECRET_URL
    assert "cookie" not in json.dumps(line_of(given, mask_secrets=False)).lower()


def test_standard_output_takes_lines_whatever_the_state() -> None:
    """Issue 5: `-`, with no cut on resume"""
    program = """
        import sys
        from curtsy.crawling.outputs import open_output
        from tests.crawling.leaves import page
        for state in (None, {"size": 5000, "entries": 1, "lost": 0, "head": "", "tail": ""}):
            output = open_output("-")
            output.open(state)
            output.page(page(1))
            output.flush()
            output.close()
        print("done")
    """
    command = [sys.executable, "-c", "\n".join(line[8:] for line in program.splitlines())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)

    first, second, last = done.stdout.splitlines()

    assert json.loads(first) == json.loads(second)
    assert last == "done"


# Folders

HOSTILE = [
    "https://example.org/../../../etc/passwd",
    "https://example.org/%2e%2e%2f%2e%2e%2fetc/passwd",
    "https://example.org/a%00b",
    "https://example.org/CON",
    "https://example.org/con",
    "https://example.org/aux.txt",
    "https://example.org/" + "x" * 5000,
    "https://example.org/a?b=/../../c",
    "https://example.org/a\\..\\b",
    "https://example.org/.",
    "https://example.org/Page",
    "https://example.org/page",
    "https://example.org/page?",
    "https://example.org/page/",
    "https://example.org/ü\n",
]


def test_no_name_comes_from_a_url_and_no_two_urls_share_one(tmp_path: Path) -> None:
    """F63"""
    urls = []
    for text in HOSTILE:
        url = parse_url(text)
        assert isinstance(url, Url)
        urls.append(url.text)
    urls += HOSTILE  # as nothing canonical would ever be
    urls = list(dict.fromkeys(urls))
    output = Folder(tmp_path / "deep" / "out")
    output.open(None)
    for number, text in enumerate(urls):
        output.page(page(number, b"%d" % number, url=text, content_type="../../x/html; charset=utf-8"))
    output.close()

    index = [json.loads(line) for line in (tmp_path / "deep" / "out" / "index.jsonl").read_text().splitlines()]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]

    assert [(tmp_path / "deep" / "out" / line["file"]).read_text() for line in index] == list(
        map(str, range(len(urls)))
    )
    assert len({line["file"].lower() for line in index}) == len(urls)
    assert len(files) == 2 * len(urls) + 1
    assert all(path.is_relative_to(tmp_path / "deep" / "out") and len(path.name) < 100 for path in files)
    assert {path.suffix for path in files} == {".bin", ".json", ".jsonl"}


@pytest.mark.parametrize(
    ("content_type", "ending"),
    [
        ("text/html; charset=utf-8", ".html"),
        ("APPLICATION/PDF", ".pdf"),
        ("application/x-msdownload", ".bin"),
        (None, ".bin"),
    ],
)
def test_a_file_has_the_ending_of_its_type(content_type: str | None, ending: str, tmp_path: Path) -> None:
    """Issue 5, F63: none that a system would run"""
    output = Folder(tmp_path)
    output.open(None)
    given = page(1, content_type=content_type)
    output.page(given)
    output.close()

    [line] = map(json.loads, (tmp_path / "index.jsonl").read_text().splitlines())
    meta = json.loads((tmp_path / line["file"]).with_suffix(".meta.json").read_text())

    assert Path(line["file"]).suffix == ending
    assert (tmp_path / line["file"]).read_bytes() == given.body
    assert meta == line_of(given)
    assert (line["url"], line["size"], line["status"]) == (given.url, len(given.body), 200)


def test_a_folder_has_no_secret_in_it(tmp_path: Path) -> None:
    """F62"""
    output = Folder(tmp_path)
    output.open(None)
    output.page(page(1, url=SECRET_URL))
    output.close()

    assert all(b"s3cret" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


# What was skipped


def rows_of(folder: Path, *some: SkippedUrl, mask_secrets: bool = True) -> list[list[str]]:
    output = SkippedCsv(folder / "skipped.csv", mask_secrets=mask_secrets)
    output.open(None)
    for each in some:
        output.skipped(each)
    output.page(page())
    output.close()
    with (folder / "skipped.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file, strict=True))


def test_the_table_says_what_was_skipped_and_why(tmp_path: Path) -> None:
    """Issue 5"""
    given = SkippedUrl("https://a.org/ü", "http_status", 'It said "no", twice.', 404, 3, "https://a.org/", False, "now")

    head, row = rows_of(tmp_path, given)

    assert head == ["url", "reason", "message", "status", "depth", "parent", "at"]
    assert row == ["https://a.org/ü", "http_status", given.message, "404", "3", "https://a.org/", "now"]


@pytest.mark.parametrize(
    "cell", ['=HYPERLINK("http://evil")', "+1+1", "-1-1", "@SUM(1)", "\t=1", "\r\n=1", "  =1", "＝1"]
)
def test_no_cell_is_a_formula(cell: str, tmp_path: Path) -> None:
    """Issue 5: links come from strangers, and tables are opened in spreadsheets."""
    [_, row] = rows_of(tmp_path, SkippedUrl(cell, "invalid_url", cell, parent=cell))

    assert all(each.startswith("'") for each in (row[0], row[2], row[5]))
    assert len((tmp_path / "skipped.csv").read_bytes().splitlines()) == 2


def test_the_table_has_no_secret_in_it(tmp_path: Path) -> None:
    """F62"""
    given = SkippedUrl(SECRET_URL, "timeout", f"{SECRET_URL} did not answer.", parent=SECRET_URL)

    assert "s3cret" not in str(rows_of(tmp_path, given))
    assert "s3cret" in str(rows_of(tmp_path / "open", given, mask_secrets=False))


def test_a_table_of_pages_has_a_harmless_row_for_each(tmp_path: Path) -> None:
    """F63: a title is the site's"""
    output = PagesCsv(tmp_path / "pages.csv")
    output.open(None)
    output.page(page(1, title="=1+1\n2", directives=("noindex", "nofollow"), url=SECRET_URL))
    output.close()

    with (tmp_path / "pages.csv").open(newline="", encoding="utf-8") as file:
        [row] = csv.DictReader(file, strict=True)
    assert tuple(row) == PagesCsv.columns
    assert (row["title"], row["status"], row["directives"]) == ("'=1+1 2", "200", "noindex nofollow")
    assert "s3cret" not in str(row)


def test_a_cell_of_a_text_that_was_not_requested_is_empty(tmp_path: Path) -> None:
    """Issue 5"""
    output = PagesCsv(tmp_path / "pages.csv")
    output.open(None)
    output.page(page(1))
    output.page(page(2, main_text="A text"))
    output.close()

    with (tmp_path / "pages.csv").open(newline="", encoding="utf-8") as file:
        assert [row["main_text"] for row in csv.DictReader(file, strict=True)] == ["", "A text"]
