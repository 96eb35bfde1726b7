"""Entry point of `python -m curtsy`."""

from curtsy.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
