"""Logs: one line of JSON for each event, with no secret in it, and never an exception."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.masking import mask_url
from curtsy.core.request import Headers
from curtsy.system.log import JsonHandler, create_logger, install_json_logging, level_named, library_logger
from tests.support.ending import ends_with_test
from tests.support.said import missing
from tests.support.snapshot import Snapshot


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().split("\n")[:-1]]


def logged(msg: str = "hello", /, **fields: Any) -> dict[str, Any]:
    """What one line says."""
    stream = io.StringIO()
    create_logger("test", stream=stream).info(msg, **fields)
    (line,) = lines(stream)
    return line


def run(
    code: str, env: Mapping[str, str] = MappingProxyType({}), stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run some code in a process of its own."""
    clean = {name: value for name, value in os.environ.items() if name not in ("LOG_LEVEL", "CURTSY_LOG_LEVEL")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, **env},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def library() -> Iterator[io.StringIO]:
    """All that the library tells, as JSON lines."""
    stream = io.StringIO()
    root = logging.getLogger("curtsy")
    level = root.level
    handler = install_json_logging("debug", stream=stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


# --- The line


def test_a_line_has_time_level_component_message_and_the_fields_in_that_order() -> None:
    """N1"""
    before = time.time()

    line = logged("Page fetched", url="https://example.org/", status=200)

    assert list(line) == ["ts", "level", "component", "msg", "url", "status"]
    assert (line["level"], line["component"], line["msg"], line["status"]) == ("info", "test", "Page fetched", 200)
    assert len(line["ts"]) == len("2026-11-15T08:00:00.000Z")
    when = datetime.strptime(line["ts"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp()
    assert before - 0.002 <= when <= time.time()


def test_lines_go_to_standard_error_and_standard_output_stays_free() -> None:
    """N1: standard output belongs to data"""
    done = run("from curtsy import create_logger; create_logger('a').error('x', n=1); print('data')")

    assert done.stdout == "data\n"
    assert json.loads(done.stderr)["component"] == "a"


def test_the_stream_is_the_one_that_is_standard_error_at_that_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """N1"""
    create_logger("a").warn("x")

    assert json.loads(capsys.readouterr().err)["level"] == "warn"


def test_what_others_wrote_before_stays_before() -> None:
    """N1"""
    done = run("import sys; from curtsy import create_logger; sys.stderr.write('first '); create_logger('a').info('x')")

    assert done.stderr.startswith("first {")


def test_a_field_cannot_take_the_place_of_the_lines_own() -> None:
    """N1"""
    line = logged("hello", ts=1, level="x", component="y", msg="z")

    assert (line["level"], line["component"], line["msg"]) == ("info", "test", "hello")
    assert (line["ts_"], line["level_"], line["component_"], line["msg_"]) == (1, "x", "y", "z")


def test_a_line_is_one_write(tmp_path: Path) -> None:
    """N1: lines of many processes are never mixed"""
    path = tmp_path / "log"
    code = "from curtsy import create_logger\nlog = create_logger('a')\nfor n in range(300): log.info('x' * 500, n=n)"
    with path.open("ab") as file:
        running = [ends_with_test(subprocess.Popen([sys.executable, "-c", code], stderr=file)) for _ in range(3)]
        codes = [each.wait(timeout=120) for each in running]

    assert codes == [0, 0, 0]
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 900


# --- Levels


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({}, ["info", "warn", "error"]),
        ({"LOG_LEVEL": "debug"}, ["debug", "info", "warn", "error"]),
        ({"LOG_LEVEL": "WARNING"}, ["warn", "error"]),
        ({"LOG_LEVEL": "debug", "CURTSY_LOG_LEVEL": "error"}, ["error"]),
        ({"LOG_LEVEL": "", "CURTSY_LOG_LEVEL": ""}, ["info", "warn", "error"]),
    ],
)
def test_the_environment_sets_the_least_level_shown(env: dict[str, str], shown: list[str]) -> None:
    """N1, C7"""
    code = "from curtsy import create_logger\nlog = create_logger('a')\n"
    code += "log.debug('a'); log.info('b'); log.warn('c'); log.error('d')"

    done = run(code, env)

    assert [json.loads(line)["level"] for line in done.stderr.splitlines()] == shown


def test_a_bad_level_means_info_and_is_told_once(snapshot: Snapshot) -> None:
    """N1"""
    code = "from curtsy import create_logger\nfor n in 'ab': create_logger(n).info('x'); create_logger(n).debug('y')"

    done = run(code, {"LOG_LEVEL": "loud"})

    warning, *rest = [json.loads(line)["msg"] for line in done.stderr.splitlines()]
    assert rest == ["x", "x"]
    assert missing(warning, "LOG_LEVEL = 'loud' ", "debug", "info", "warn", "error") == []
    snapshot(warning)


def test_the_level_can_be_changed_and_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """N1"""
    monkeypatch.setenv("CURTSY_LOG_LEVEL", "error")
    stream = io.StringIO()
    log = create_logger("a", stream=stream)
    log.info("1")

    log.set_level("debug")
    log.debug("2")
    monkeypatch.setenv("CURTSY_LOG_LEVEL", "warn")
    log.set_level()
    log.info("3")
    log.warn("4")

    assert [line["msg"] for line in lines(stream)] == ["2", "4"]


@pytest.mark.parametrize(
    ("name", "level"),
    [("INFO", "info"), (" warning ", "warn"), ("critical", "error"), ("trace", "debug"), ("loud", None), ("", None)],
)
def test_levels_go_by_their_usual_names(name: str, level: str | None) -> None:
    """N1"""
    assert level_named(name) == level


# --- Whatever is logged


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@dataclass
class Page:
    url: str
    body: object = None


LOOP: list[object] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ([1, "ä", {"a": (2.5,)}], [1, "ä", {"a": [2.5]}]),
        (Page("https://example.org/"), {"url": "https://example.org/", "body": None}),
        (Path("/a/b"), "PosixPath('/a/b')"),
        (ValueError("x"), "ValueError('x')"),
        (float("nan"), None),
        (10**30, 10**30),
        ("\udc80", "\\udc80"),
        ({(1, 2): 3}, {"(1, 2)": 3}),
        (LOOP, "[[...]]"),
        (Unprintable(), "<Unprintable that cannot be shown>"),
        (Page("x", Unprintable()), "<Page that cannot be shown>"),
        ("a\nb\r\u2028\0", "a\nb\r\u2028\0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_cannot_be_encoded_is_shown_by_its_repr(value: object, expected: object) -> None:
    """N1"""
    line = logged(value=value, other=1)

    assert line["value"] == expected
    assert line["other"] == 1


anything = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters()), st.binary(), st.builds(object)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(st.characters()), st.dictionaries(st.text(max_size=10), anything, max_size=4))
@example("https://u:p\\@h/?token=\"'\\", {"cookie": None, "Set-Cookie": [1, "]"], "x": 'Cookie: "\\n'})
@example("authorization: \\", {"authorization": {"a": "}"}, "z": ["Cookie", "\\"]})
def test_any_line_is_one_line_of_json(msg: str, fields: dict[str, Any]) -> None:
    """N1"""
    stream = io.StringIO()

    create_logger("test", stream=stream).error(msg, **fields)

    text = stream.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert set(json.loads(text)) >= {"ts", "level", "component", "msg"}


# --- When nobody can be told


@pytest.mark.parametrize(
    "before", ["import os; os.close(2)", "import sys; sys.stderr.close()", "import sys; sys.stderr = None", ""]
)
def test_a_closed_standard_error_stops_nothing(before: str) -> None:
    """N1"""
    code = f"{before}\nfrom curtsy.system.log import create_logger, install_json_logging, library_logger\n"
    code += "create_logger('a').error('x')\ninstall_json_logging()\nlibrary_logger('b').error('y')\nprint('still here')"

    done = run(code)

    assert done.stdout == "still here\n"


def test_a_broken_pipe_stops_nothing() -> None:
    """N1"""
    reader, writer = os.pipe()
    os.close(reader)
    code = "from curtsy import create_logger\n"
    code += "for n in range(3): create_logger('a').info('x' * 100000)\nprint('still here')"

    try:
        done = run(code, stderr=writer)
    finally:
        os.close(writer)

    assert done.stdout == "still here\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_full_disk_stops_nothing() -> None:
    """N1, F40"""
    with open("/dev/full", "w") as full:
        create_logger("a", stream=full).error("x")
        create_logger("a", stream=full).error("y")


# --- Secrets


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("https://user:geheim@example.org/x", "https://***@example.org/x"),
        ("https://user:ge@heim@example.org/", "https://***@example.org/"),
        ("https://user:ge/heim@example.org/", "https://***@example.org/"),
        ("https://geheim@example.org", "https://***@example.org"),
        ("https:///user:geheim@example.org/", "https://***@example.org/"),
        ("https:////user:ge/heim@example.org/", "https://***@example.org/"),
        ("redis://:geheim@localhost:6379/0", "redis://***@localhost:6379/0"),
        ("see https://a:geheim@b/ and ftp://c:geheim@d/", "see https://***@b/ and ftp://***@d/"),
        ("https://e.org/?token=geheim", "https://e.org/?token=***"),
        ("https://e.org/?a=1&api_key=geheim&b=2#c", "https://e.org/?a=1&api_key=***&b=2#c"),
        ("https://e.org/?API-Key=geheim", "https://e.org/?API-Key=***"),
        ("https://e.org/?key=geheim&keyword=no", "https://e.org/?key=***&keyword=no"),
        ("https://e.org/?api%5Fkey=geheim", "https://e.org/?api%5Fkey=***"),
        ("https://e.org/?user[password]=geheim", "https://e.org/?user[password]=***"),
        ("https://e.org/?X-Amz-Signature=geheim&X-Amz-Date=1", "https://e.org/?X-Amz-Signature=***&X-Amz-Date=1"),
        ("https://e.org/?X-Amz-Credential=geheim", "https://e.org/?X-Amz-Credential=***"),
        ("https://e.org/#access_token=geheim&type=b", "https://e.org/#access_token=***&type=b"),
        ("https://e.org/a;jsessionid=geheim", "https://e.org/a;jsessionid=***"),
        ("https://e.org/?next=https://f.org/?sig=geheim", "https://e.org/?next=https://f.org/?sig=***"),
        (
            "https://e.org/?u=https%3A%2F%2Ff.org%2F%3Ftoken%3Dgeheim%26b%3D1&c=2",
            "https://e.org/?u=https%3A%2F%2Ff.org%2F%3Ftoken%3D***%26b%3D1&c=2",
        ),
        ("/path?session=geheim", "/path?session=***"),
        ("https://e.org/?password=geheim%26heim%23x&y=1", "https://e.org/?password=***&y=1"),
        *((f"https://e.org/?{name}=geheim", f"https://e.org/?{name}=***") for name in (
            "apikey", "access_token", "password", "passwd", "pwd", "secret", "client_secret", "signature", "auth",
            "sid", "code", "PHPSESSID", "AWSAccessKeyId", "subscription-key", "refreshToken",
            "auth_code", "userpass", "hmac_sha256", "mfa_code", "passcode", "user_pw",
        )),
    ],
)  # fmt: skip
def test_secrets_in_urls_are_masked(text: str, masked: str) -> None:
    """F62"""
    assert mask_url(text) == masked
    assert mask_url(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "https://example.org/",
        "https://example.org:8080/@user?page=2&author=k&zipcode=3&compass=n",
        "http://[::1]:80/@user",
        "sqlite:////home/user@example/hosts.sqlite",
        "https://example.org/?token=",
        "a@example.org wrote: 1 = 2?",
        "token=not a parameter",
    ],
)
def test_what_is_no_secret_stays_as_it_is(text: str) -> None:
    """F62"""
    assert mask_url(text) == text


SECRET = "geheim4711"


@given(
    st.sampled_from(
        [
            f"https://user:{SECRET}@example.org/",
            f"https://example.org/?token={SECRET}",
            f"Authorization: Bearer {SECRET}",
            f"GET / Cookie: a=b; sid={SECRET}",
        ]
    ),
    st.sampled_from(["", " ", "see ", '"', "ä\n", "'"]),
    st.sampled_from([lambda text: text, lambda text: [text], lambda text: {"a": [text]}, Page, ValueError, repr]),
)
def test_no_secret_comes_into_a_line_wherever_it_stands(secret: str, before: str, put: Any) -> None:
    """F62"""
    line = logged(before + secret, field=put(before + secret), other=1)

    assert SECRET not in json.dumps(line)
    assert line["other"] == 1


@pytest.mark.parametrize(
    "name", ["Authorization", "authorization", "Cookie", "Set-Cookie", "set_cookie", "PROXY-AUTHORIZATION"]
)
@pytest.mark.parametrize(
    "value", [SECRET, f'a"{SECRET}', [SECRET, f"b]{SECRET}"], {"a": f"}}{SECRET}"}, f"\\{SECRET}\\"], ids=repr
)
def test_fields_that_are_secret_by_their_name_are_masked(name: str, value: object) -> None:
    """F62"""
    plain = logged(**{name: value}, status=200)
    nested = logged(headers={name: value, "Accept": "*/*"}, status=200)
    pairs = logged(headers=[(name, value if isinstance(value, str) else SECRET), ("Accept", "*/*")], status=200)

    assert (plain[name], nested["headers"], pairs["headers"][0]) == (
        "***",
        {name: "***", "Accept": "*/*"},
        [name, "***"],
    )
    assert plain["status"] == nested["status"] == pairs["status"] == 200
    assert pairs["headers"][1] == ["Accept", "*/*"]


def test_the_headers_of_a_message_are_masked() -> None:
    """F62"""
    headers = Headers([("Cookie", f"a={SECRET}"), ("Accept", "*/*"), ("authorization", f"Basic {SECRET}")])

    line = logged(headers=headers)

    assert SECRET not in line["headers"]
    assert "*/*" in line["headers"]


# --- The library's own


def test_the_library_prints_nothing_uninvited() -> None:
    """N1"""
    code = "from curtsy.system.log import library_logger; library_logger('x').error('hello', a=1)"

    done = run(code)

    assert (done.stdout, done.stderr) == ("", "")


def test_a_program_that_listens_in_the_usual_way_sees_message_and_fields(caplog: pytest.LogCaptureFixture) -> None:
    """N1, F62"""
    library_logger("store").warning("Store is gone", url=f"redis://:{SECRET}@h/0", tries=3)

    (record,) = caplog.records
    assert (record.name, record.levelname, record.funcName) == (
        "curtsy.store",
        "WARNING",
        "test_a_program_that_listens_in_the_usual_way_sees_message_and_fields",
    )
    message, fields = record.getMessage().split(" {")
    assert (message, json.loads("{" + fields)) == ("Store is gone", {"url": "redis://***@h/0", "tries": 3})


def test_the_library_can_be_made_to_write_json_lines(library: io.StringIO) -> None:
    """N1"""
    library_logger("store").warning("Store is gone", tries=3)
    logging.getLogger("curtsy").critical("%s %d", "x", 1, extra={"fields": {"a": 2}})
    logging.getLogger("curtsy.gate").debug("plain")

    assert [{name: line[name] for name in line if name != "ts"} for line in lines(library)] == [
        {"level": "warn", "component": "store", "msg": "Store is gone", "tries": 3},
        {"level": "error", "component": "curtsy", "msg": "x 1", "a": 2},
        {"level": "debug", "component": "gate", "msg": "plain"},
    ]


def test_an_exception_is_told_with_its_traceback(library: io.StringIO) -> None:
    """N1"""
    try:
        raise ValueError(f"https://u:{SECRET}@h/")
    except ValueError:
        logging.getLogger("curtsy").exception("failed")

    (line,) = lines(library)
    assert line["traceback"].startswith("Traceback")
    assert "ValueError: https://***@h/" in line["traceback"]


def test_a_message_whose_arguments_do_not_fit_is_still_told() -> None:
    """N1"""
    stream = io.StringIO()

    JsonHandler(stream=stream).handle(logging.LogRecord("mine", 30, __file__, 1, "%d %d", ("x",), None))

    assert lines(stream)[0]["msg"] == "%d %d ('x',)"


def test_installing_twice_writes_each_line_once(library: io.StringIO) -> None:
    """N1"""
    other = io.StringIO()
    handler = install_json_logging("error", stream=other)

    library_logger("x").warning("not shown")
    library_logger("x").error("shown")
    logging.getLogger("curtsy").removeHandler(handler)

    assert library.getvalue() == ""
    assert [line["msg"] for line in lines(other)] == ["shown"]


def test_a_handler_can_be_used_for_any_logger() -> None:
    """N1"""
    stream = io.StringIO()
    record = logging.LogRecord("mine", 35, __file__, 1, "hello", None, None)
    record.created = 1_794_729_600.25

    JsonHandler(stream=stream).handle(record)

    assert stream.getvalue() == '{"ts":"2026-11-15T08:00:00.250Z","level":"warn","component":"mine","msg":"hello"}\n'


# --- Fields as a mapping


@pytest.mark.parametrize("level", ["debug", "info", "warn", "error"])
def test_a_mapping_as_second_argument_gives_further_fields(level: str) -> None:
    """N1"""
    stream = io.StringIO()
    log = create_logger("test", level="debug", stream=stream)

    getattr(log, level)("Fetched", {"status": 200, "url": f"https://u:{SECRET}@h/", "msg": "x"}, status=304, pages=1)
    getattr(log, level)("Fetched", None)
    getattr(log, level)("Fetched", MappingProxyType({"a": 1}))

    first, second, third = lines(stream)
    assert (first["msg"], first["status"], first["url"], first["msg_"], first["pages"]) == (
        "Fetched", 304, "https://***@h/", "x", 1,
    )  # fmt: skip
    assert set(second) == {"ts", "level", "component", "msg"}
    assert third["a"] == 1


@given(anything)
def test_whatever_the_second_argument_is_the_line_is_written(value: Any) -> None:
    """N1"""
    stream = io.StringIO()

    create_logger("test", stream=stream).info("hello", value, other=1)

    (line,) = lines(stream)
    assert (line["msg"], line["other"]) == ("hello", 1) or "other" in (value or {})
