"""Every Python block of README and docs runs, in order, page by page, against a real site."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.site import Site

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HASTE = {
    "CURTSY_ALLOW_PRIVATE": "true",
    "CURTSY_PAUSE_MIN": "0",
    "CURTSY_PAUSE_MAX": "0",
    "CURTSY_QPS": "none",
    "CURTSY_GLOBAL_QPS": "none",
}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    with Site() as site:
        for path in ("/", "/about", "/more"):
            site.page(path, f"<title>{path}</title><main>Hello</main>")
        site.robots("User-agent: *\nDisallow: /private/\n")
        address = site.url("/").removesuffix("/")
        program = "\n".join(BLOCK.findall(page.read_text()))
        program = program.replace("https://example.org", address)
        program = program.replace('"example.org"', f'"{address.removeprefix("http://")}"')
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        if "fetch" in program:  # not for pages that show what the settings are
            environment |= HASTE

        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50
        )

        assert done.returncode == 0, f"{page.name}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []
