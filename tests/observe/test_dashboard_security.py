"""Who may talk to the dashboard, and what a browser may do with its answers (Issue 7, point 5)."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from curtsy.core.amendment import Trip
from curtsy.core.policy import Policies
from curtsy.engine.gate_steps import amended
from curtsy.observe.dashboard.security import guarded_names, is_loopback
from tests.observe.serving import TOKEN, Served, environment, said, serving
from tests.support.snapshot import Snapshot
from tests.support.warm import Process

PATHS = ("/", "/static/app.js", "/api/session", "/api/overview", "/api/hosts", "/metrics", "/nowhere")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard as it is by default."""
    with serving(tmp_path_factory.mktemp("open")) as served:
        yield served


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard that other machines could reach, and that asks for a token."""
    home = tmp_path_factory.mktemp("locked")
    with serving(home, "--host", "0.0.0.0", CURTSY_DASHBOARD_TOKEN=TOKEN) as served:
        yield served


# --- Where it listens, and what it is called -------------------------------------------------------------------------


def test_it_listens_on_loopback_only(served: Served) -> None:
    """Issue 7"""
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", served.port), 2)


@pytest.mark.parametrize(
    "host", ["rebound.example", "rebound.example:{port}", "127.0.0.1.nip.example", "10.0.0.1", "", "a@b", "[::1"]
)
@pytest.mark.parametrize("path", PATHS)
def test_another_name_for_it_is_refused(served: Served, host: str, path: str) -> None:
    """Issue 7: a site whose name was made to point here learns nothing (DNS rebinding)."""
    answer = served.ask(path, host=host.format(port=served.port))

    assert answer.status in (400, 421)
    assert b"csrf" not in answer.body


def test_two_host_fields_are_refused(served: Served) -> None:
    """Issue 7"""
    assert served.ask("/api/session", Host="rebound.example").status in (400, 421)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST", "[::1]:{port}", "localhost:9999"]
)
def test_its_own_names_are_answered(served: Served, host: str) -> None:
    """Issue 7: also by another port, as through a tunnel."""
    assert served.ask("/api/session", host=host.format(port=served.port)).status == 200


def test_on_all_addresses_any_address_is_its_own_but_no_strange_name(locked: Served) -> None:
    """Issue 7"""
    assert locked.ask("/api/session", host="192.0.2.7:80", authorization=f"Bearer {TOKEN}").status == 200
    assert locked.ask("/api/session", host="rebound.example", authorization=f"Bearer {TOKEN}").status == 421


def test_a_further_name_can_be_given() -> None:
    """Issue 7"""
    names, literals = guarded_names("192.0.2.1", ["dash.example"])

    assert {"192.0.2.1", "dash.example"} <= names
    assert literals
    assert guarded_names("127.0.0.1")[1] is False


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True), ("127.8.8.8", True),
     ("0.0.0.0", False), ("::", False), ("192.0.2.1", False), ("example.org", False)],
)  # fmt: skip
def test_loopback_is_known(host: str, expected: bool) -> None:
    """Issue 7"""
    assert is_loopback(host) is expected


def refused(home: Path, *options: str, **env: str) -> tuple[int, str]:
    """How `curtsy serve` ends when it does not begin."""
    process: Process[str] = Process(
        "curtsy.cli", "serve", *options, text=True, cwd=home, env=environment(home) | env,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, told = process.communicate(120)
    return process.returncode, told


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_any_other_address_needs_a_token(tmp_path: Path, host: str, snapshot: Snapshot) -> None:
    """Issue 7"""
    code, said = refused(tmp_path, "--host", host)

    assert code == 2
    assert host in said
    assert "CURTSY_DASHBOARD_TOKEN" in said
    snapshot(said)


def test_a_token_that_could_be_guessed_is_refused(tmp_path: Path) -> None:
    """Issue 7"""
    code, said = refused(tmp_path, "--host", "0.0.0.0", CURTSY_DASHBOARD_TOKEN="secret")

    assert code == 2
    assert "6 characters" in said
    assert "secret" not in said


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_the_address_that_is_told_can_be_opened(tmp_path: Path, host: str, snapshot: Snapshot) -> None:
    """Issue 7: 0.0.0.0 is none, and it is told that other machines reach the dashboard"""
    with serving(tmp_path, "--host", host, CURTSY_DASHBOARD_TOKEN=TOKEN):
        told = next(line for line in said(tmp_path).splitlines() if "http://" in line)
        [url] = re.findall(r"http://\S+/", told)
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request) as page:
            assert page.status == 200

    assert "0.0.0.0" not in url
    snapshot(told)


# --- The token -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/session", "/api/overview", "/api/hosts", "/api/host?domain=a.org",
                                  "/api/why?url=https://a.org/", "/api/stream", "/metrics"])  # fmt: skip
@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}, {"authorization": "Bearer"},
     {"authorization": f"Bearer {TOKEN}x"}, {"authorization": f"Bearer {TOKEN[:-1]}"}, {"cookie": f"curtsy={TOKEN}"}],
)  # fmt: skip
def test_without_the_token_there_is_no_data(locked: Served, path: str, headers: dict[str, str]) -> None:
    """Issue 7"""
    answer = locked.ask(path, **headers)

    assert answer.status == 401
    assert answer.json["error"] == "token"


def test_the_token_itself_is_no_cookie(locked: Served) -> None:
    """Issue 7: a cookie that somebody reads is worth nothing after the server has ended."""
    assert locked.ask("/api/session", cookie=f"curtsy-{locked.port}={TOKEN}").status == 401


def test_a_bearer_of_the_token_is_let_in(locked: Served) -> None:
    """Issue 7"""
    assert locked.ask("/api/overview", authorization=f"Bearer {TOKEN}").status == 200
    assert locked.ask("/metrics", authorization=f"bearer {TOKEN}").status == 200


def test_the_token_in_the_address_becomes_a_cookie_once(locked: Served) -> None:
    """Issue 7: HttpOnly and SameSite=Strict, and gone from the address bar."""
    answer = locked.ask(f"/?token={TOKEN}")

    cookie = answer.headers["set-cookie"]
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert locked.ask("/api/session", cookie=cookie.partition(";")[0]).status == 200


def test_a_wrong_token_gets_no_cookie(locked: Served) -> None:
    """Issue 7"""
    by_address = locked.ask("/?token=wrong-but-just-as-long")
    by_form = locked.ask("/api/login", "POST", {"token": "wrong-but-just-as-long"})

    assert [by_address.status, by_form.status] == [401, 401]
    assert "set-cookie" not in by_address.headers | by_form.headers


def test_the_login_form_gives_the_cookie(locked: Served) -> None:
    """Issue 7"""
    answer = locked.ask("/api/login", "POST", {"token": TOKEN})

    assert answer.status == 200
    assert locked.ask("/api/session", cookie=answer.headers["set-cookie"].partition(";")[0]).status == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 1}', b"\xff", b"x" * 20_000])
def test_a_login_that_makes_no_sense_is_refused(locked: Served, body: bytes) -> None:
    """Issue 7"""
    assert locked.ask("/api/login", "POST", body).status == 400


def test_the_token_is_never_told(locked: Served) -> None:
    """F62"""
    for path in PATHS:
        assert TOKEN.encode() not in locked.ask(path, authorization=f"Bearer {TOKEN}").body


# --- Other sites' pages ----------------------------------------------------------------------------------------------


def tripped(served: Served, domain: str) -> None:
    policy = Policies().of(domain)
    with served.store() as store:
        store.update(policy.key_for(domain), amended(policy, Trip()))


def is_open(served: Served, domain: str) -> bool:
    return bool(served.ask(f"/api/host?domain={domain}").json["view"]["breaker"] == "open")


def test_an_action_needs_the_header_that_only_our_page_knows(served: Served) -> None:
    """Issue 7: CSRF"""
    tripped(served, "csrf.example")
    action = {"action": "reset", "domain": "csrf.example"}

    for headers in ({}, {"x_curtsy_csrf": ""}, {"x_curtsy_csrf": "0" * 64}):
        answer = served.ask("/api/actions", "POST", action, **headers)
        assert (answer.status, answer.json["error"]) == (403, "csrf")

    assert is_open(served, "csrf.example")
    assert served.act("reset", "csrf.example").status == 200
    assert not is_open(served, "csrf.example")


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"},
     {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}],
)  # fmt: skip
def test_an_action_from_another_site_is_refused_whatever_it_knows(served: Served, headers: dict[str, str]) -> None:
    """Issue 7"""
    tripped(served, "cross.example")
    csrf = served.ask("/api/session").json["csrf"]

    answer = served.ask(
        "/api/actions", "POST", {"action": "reset", "domain": "cross.example"}, x_curtsy_csrf=csrf, **headers
    )

    assert (answer.status, answer.json["error"]) == (403, "cross_site")
    assert is_open(served, "cross.example")


def test_an_action_as_a_form_would_send_it_is_refused(served: Served) -> None:
    """Issue 7"""
    csrf = served.ask("/api/session").json["csrf"]

    answer = served.ask("/api/actions", "POST", b"{}", x_curtsy_csrf=csrf, content_type="text/plain")

    assert answer.status == 415


def test_an_action_is_never_a_get(served: Served) -> None:
    """Issue 7"""
    assert served.ask("/api/actions").status == 405
    assert served.ask("/api/login").status == 405


@pytest.mark.parametrize("path", ["/api/session", "/api/overview", "/api/stream", "/metrics"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_not_even_ask(served: Served, path: str, site: str) -> None:
    """Issue 7"""
    assert served.ask(path, sec_fetch_site=site).status == 403


@pytest.mark.parametrize("path", PATHS)
def test_no_answer_is_for_other_sites_and_nothing_may_run_that_is_not_ours(served: Served, path: str) -> None:
    """Issue 7: no CORS, a strict policy, no frames."""
    answer = served.ask(path, origin="https://evil.example")

    policy = answer.headers["content-security-policy"]
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == ("no-cache" if path in ("/", "/static/app.js") else "no-store")
    assert "server" not in answer.headers


def test_a_preflight_is_not_granted(served: Served) -> None:
    """Issue 7"""
    answer = served.ask(
        "/api/actions", "OPTIONS", origin="https://evil.example", access_control_request_method="POST"
    )  # fmt: skip

    assert answer.status == 403


@pytest.mark.parametrize(
    "name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "index.html", "/etc/passwd", "app.js%00"]
)
def test_only_the_files_of_the_page_are_given(served: Served, name: str) -> None:
    """F63"""
    assert served.ask(f"/static/{name}").status == 404


def test_the_page_has_no_script_or_style_in_it_and_names_no_other_place() -> None:
    """Issue 7: no outside resource; and nothing that makes markup of a text."""
    folder = Path(sys.modules["curtsy.observe.dashboard.security"].__file__ or "").parent / "static"
    page, script, style = ((folder / name).read_text() for name in ("index.html", "app.js", "style.css"))

    assert "<style" not in page
    assert not re.search(r"\s(style|on[a-z]+)=", page)
    assert page.count("<script") == page.count('<script type="module" src="/static/app.js">') == 1
    assert "//" not in (page + style).replace("https://example.org", "")
    assert not re.search(r"\.(inner|outer)HTML|insertAdjacent|document\.write|\beval\(|\bFunction\(|srcdoc", script)


# --- How it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_though_somebody_watches(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """U17: and quickly, though a stream has no end of its own."""
    with serving(tmp_path) as served, socket.create_connection(("127.0.0.1", served.port), 10) as watcher:
        watcher.sendall(f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n\r\n".encode())
        assert b"200 OK" in watcher.recv(1000)

        assert served.stop(number) == code


def test_a_port_that_is_taken_is_told(tmp_path: Path, served: Served, snapshot: Snapshot) -> None:
    """Issue 7"""
    code, said = refused(tmp_path, "--port", str(served.port))

    assert code == 1
    assert f"port {served.port}" in said
    assert "--port" in said
    snapshot(said)


@pytest.mark.parametrize("host", ["203.0.113.1", "a..b"])
def test_an_address_that_is_not_ours_is_told(tmp_path: Path, host: str, snapshot: Snapshot) -> None:
    """Issue 7: another port would not help"""
    code, said = refused(tmp_path, "--host", host, CURTSY_DASHBOARD_TOKEN=TOKEN)

    assert code == 1
    assert f" {host}" in said
    assert "--host" in said
    assert "--port" not in said
    snapshot(said.rpartition(". ")[2])  # without the system's words


def test_a_store_that_nobody_else_can_see_is_refused(tmp_path: Path, snapshot: Snapshot) -> None:
    """Issue 7"""
    code, said = refused(tmp_path, "--port", "0", "--store", "memory:")

    assert code == 2
    assert "memory" in said
    snapshot(said)


def test_without_its_libraries_it_says_what_to_install(tmp_path: Path) -> None:
    """Issue 7: with the code that every missing extra has"""
    program = "import sys; sys.modules['uvicorn'] = None; from curtsy.cli import main; sys.exit(main(['serve']))"

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 78
    assert 'pip install "curtsy[dashboard]"' in done.stderr
