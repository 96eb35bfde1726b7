"""Look for known vulnerabilities in what is installed, with pip-audit; skip with a message if it has no data."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 120
"""How long the whole look-up may take."""


def main() -> int:
    """Return 1 if a vulnerability is known, else 0."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--skip-editable", "--timeout", "10"]
        try:
            done = subprocess.run(
                [*command, "--format", "json", "--output", str(report)],
                capture_output=True, text=True, check=False, timeout=SECONDS,
            )  # fmt: skip
            found = json.loads(report.read_text())["dependencies"]
        except (subprocess.TimeoutExpired, OSError, ValueError, KeyError):
            found = []
    audited = [each for each in found if "vulns" in each]
    if not audited:
        print("audit: skipped, because the database of vulnerabilities cannot be reached", file=sys.stderr)
        return 0
    wrong = [(each["name"], each["version"], bug["id"]) for each in audited for bug in each["vulns"]]
    for name, version, bug in wrong:
        print(f"audit: {name} {version} has {bug}", file=sys.stderr)
    unknown = len(found) - len(audited)
    print(f"audit: {len(audited)} packages looked up, {len(wrong)} vulnerabilities, {unknown} packages unknown")
    return 1 if wrong or done.returncode not in (0, 1) else 0


if __name__ == "__main__":
    sys.exit(main())
