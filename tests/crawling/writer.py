"""A process of its own that writes pages: `python -m tests.crawling.writer <folder> <kind> <pages> <limit>`.

After each flush it notes in a file how far it has come, as a frontier does, and goes on there when it is started again.
Each line of its standard input lets it take one step, the end of it all that are left. With a limit, its files cannot
grow beyond so many bytes, as on a full disk.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
from pathlib import Path
from typing import Any

from curtsy.core.errors import NotWritten
from tests.crawling.leaves import KINDS, page, skip


def noted(folder: Path) -> tuple[int, Any]:
    """How many pages are done, and where the output ended then."""
    path = folder / "notes"
    number, state = json.loads(path.read_bytes()) if path.exists() else (0, None)
    return number, state


def run(folder: Path, kind: str, pages: int) -> None:
    """Write until all is there."""
    [make] = (each.make for each in KINDS if each.name == kind)
    output = make(folder / "output")
    number, state = noted(folder)
    output.open(state)
    dice = random.Random()
    while True:
        (folder / "notes.new").write_text(json.dumps([number, output.flush()]))
        os.replace(folder / "notes.new", folder / "notes")
        print(number, flush=True)
        sys.stdin.readline()
        if number >= pages:
            break
        for _ in range(min(dice.randint(1, 5), pages - number)):
            output.page(page(number))
            output.skipped(skip(number))
            number += 1
    output.close()


def main() -> None:
    limit = int(sys.argv[4])
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except NotWritten as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
