"""`python -m gnnlab` is `gnnlab`."""

from gnnlab.cli import main

if __name__ == "__main__":  # spawned processes import this file too
    raise SystemExit(main())
