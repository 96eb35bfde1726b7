"""Virtual environments for programs too heavy for that of the tests; kept from run to run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".venv-soak"


def python_with(package: str) -> Path:
    """Return the Python of an environment with a package and with curtsy as it is here.

    Without a version of the package for this Python, the test is skipped.
    """
    folder = FOLDER / re.sub(r"\W+", "-", package)
    python = folder / "bin" / "python"
    if not (folder / "whole").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, timeout=120)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, package, "--editable", f"{ROOT}[redis]"], capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            said = done.stderr.strip()[-500:]
            if "No matching distribution" in said and os.environ.get("CI") != "true":
                pytest.skip(f"{package} cannot be had for Python {sys.version.split()[0]}: {said}")
            pytest.fail(said)
        (folder / "whole").touch()
    return python
