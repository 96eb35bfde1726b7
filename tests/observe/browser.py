"""A real browser for the tests: the system's Chromium, driven by Playwright; nothing is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-dev-shm-usage",
)  # fmt: skip


def _missing() -> str | None:
    """Why there is no browser; None if there is one."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return 'Playwright is not installed: pip install "curtsy[test]".'
    if program() is None:
        return "Chromium is not installed. `make test` installs it where it may; else install your system's package."
    return None


def program() -> str | None:
    """The path of the browser; None if there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; without one the test is skipped, but under CI=true it fails."""
    require()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def require() -> None:
    """Skip the test if there is no browser, but under CI=true let it fail."""
    if (reason := _missing()) is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


class Looked:
    """A page that somebody looks at, and all that went wrong on it."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", self._dialog)
        page.on("console", lambda line: self.wrong.append(line.text) if line.type == "error" else None)
        page.on("request", lambda request: None if request.url.startswith(origin) else self.wrong.append(request.url))

    def _dialog(self, dialog: Any) -> None:
        self.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def text(self, selector: str) -> str:
        """What stands there."""
        return self.page.locator(selector).first.inner_text()

    def wait(self, expression: str, *arguments: object) -> None:
        """Wait until something is so, on the page."""
        self.page.wait_for_function(expression, arg=arguments[0] if arguments else None)


@contextmanager
def looking(browser: Browser, url: str, **options: Any) -> Iterator[Looked]:
    """Open a page in a browser that remembers nothing; at the end nothing must have gone wrong on it."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    try:
        looked = Looked(context.new_page(), url.partition("#")[0])
        looked.page.goto(url)
        try:
            yield looked
        except Exception as error:
            error.add_note(f"{looked.wrong}\nThe page says: {looked.page.locator('body').inner_text()[:4000]}")
            raise
        assert not looked.wrong, looked.wrong
    finally:
        context.close()
