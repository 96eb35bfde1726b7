"""`Process("tests.support.whole", text, …)` is `python -W error -c text …` to its end, forked from a warm process.

`tests.support.program` skips the interpreter's end, which takes longer than most programs. Here the program's globals,
threads, exit handlers and destructors end as those of any program do.
"""

from __future__ import annotations

import sys
import types
import warnings

IS_WHOLE = True


def main() -> None:
    text = sys.argv.pop(1)
    sys.argv[0] = "-c"
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This process")  # since 3.12 Python warns of every fork beside a thread
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(text, "<string>", "exec"), module.__dict__)
