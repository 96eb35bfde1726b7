"""Fuzz every parser in a process of its own: `python -m tests.fuzz --seconds 600 [TARGET …]`.

The corpus that has been found grows in `.cache/fuzz`, and the next run starts from it. An input that fails is kept
there too, and printed; put it into `tests/fuzz/examples/TARGET-what-it-is`, where `make test` runs it from then on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(__file__).parent / "examples"
CORPUS = ROOT / ".cache" / "fuzz"
LONGEST = 256 * 1024
"""Bytes of an input before it is expanded."""

SLOWED = 4
"""How much longer an input may take here: instrumented code is up to four times as slow."""

RSS = 1024
"""MiB that a fuzzing process may have in all, coverage counters and corpus included."""


def main() -> int:
    """Fuzz the targets one after the other; 1 if an input failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="robots, page, sitemap, decoding, fields, urls")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        return _fuzz(given.one, given.seconds)
    from tests.fuzz.targets import TARGETS  # not before: what is imported later is instrumented

    names = given.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"{', '.join(sorted(unknown))}: there is no such target; there are {', '.join(TARGETS)}")
    each = max(1, given.seconds // len(names))
    failed = []
    for name in names:
        print(f"== {name}: {each} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--seconds", str(each)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}. See {CORPUS}/failed-*" if failed else "no input failed")
    return 1 if failed else 0


def _fuzz(name: str, seconds: int) -> int:
    """Fuzz one target in this process, which ends with it."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install 'curtsy[fuzz]' on Linux", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["curtsy"]):
        from tests.fuzz.targets import SECONDS, TARGETS, check, seeds
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(name)):
        (folder / f"seed-{number}").write_bytes(seed)
    target = TARGETS[name]
    arguments = [
        sys.argv[0], f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=20", f"-rss_limit_mb={RSS}",
        f"-artifact_prefix={CORPUS}{os.sep}failed-{name}-", "-print_final_stats=1", "-verbosity=0", str(folder),
        *(str(EXAMPLES) for _ in "x" if EXAMPLES.is_dir()),
    ]  # fmt: skip
    atheris.Setup(arguments, lambda data: check(target, data, seconds=SLOWED * SECONDS))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
