"""One command that makes a report of a GPU: are gnnswap's layers right on it, and how fast are they?

    python scripts/gpu_check.py --out FOLDER --budget 420       # on a machine with a CUDA device
    python scripts/gpu_check.py --out FOLDER --only kernels --sizes arxiv,20k
    python scripts/gpu_check.py --out FOLDER --tiny             # all of it on a CPU with graphs of 6 to 20 nodes
    python scripts/gpu_check.py --page FOLDER                   # index.md again, from FOLDER/gpu_check.json alone

It writes FOLDER/gpu_check.json (every row with its raw rounds, after each step, so that a kill loses nothing) and
FOLDER/index.md, a page whose every number comes from those rows. Parts run one after the other in one process, so that
nothing shares the card. The exit status is 1 if a result is wrong, a test fails or a part breaks, else 0.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

from gpu_check.page import write_page, wrong  # noqa: E402
from gpu_check.rows import LAYERS, PARTS, SIZES, TINY, load  # noqa: E402


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where gpu_check.json and index.md go")
    parser.add_argument("--page", type=Path, metavar="FOLDER", help="write index.md from gpu_check.json there, no more")
    parser.add_argument("--budget", type=float, default=420, metavar="SECONDS", help="of the whole run (420)")
    some = "some of {}, by commas"
    parser.add_argument("--only", type=names_of(PARTS), default=PARTS, help=some.format(", ".join(PARTS)))
    parser.add_argument("--sizes", type=names_of(SIZES), default=tuple(SIZES), help=some.format(", ".join(SIZES)))
    parser.add_argument("--layers", type=names_of(LAYERS), default=LAYERS, help=some.format(", ".join(LAYERS)))
    parser.add_argument("--prepare", choices=LAYERS, help=argparse.SUPPRESS)  # a process that compiles ahead
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="on a CPU, with graphs of 6 to 20 nodes")
    found = parser.parse_args(given)
    if (found.out is None) == (found.page is None) and not found.prepare:
        parser.error("give --out FOLDER, to measure, or --page FOLDER, to write the page again")
    return found


def names_of(known: Sequence[str]):
    """The type of an argument: names by commas, in the order of `known`."""

    def read(text: str) -> tuple[str, ...]:
        asked = [name for name in text.split(",") if name]
        unknown = [name for name in asked if name not in known]
        if unknown or not asked:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is not among {', '.join(known)}")
        return tuple(name for name in known if name in asked)

    return read


def empty(settings: dict) -> dict:
    """The results of a run that has measured nothing yet."""
    tables = ("checks", "times", "captured", "notebooks", "missed", "problems")
    results = {"settings": settings, "facts": {}, "seconds": {}, "finished": False, "tests": {}}
    return results | {table: [] for table in tables}


def measure(given: argparse.Namespace) -> None:
    """Run the parts that were asked for and write gpu_check.json.

    Raises:
        SystemExit: there is no CUDA device, and it is no tiny run.
    """
    import torch
    from gpu_check.parts import Run, execute

    if not given.tiny and not torch.cuda.is_available():
        raise SystemExit("gpu_check needs a CUDA device, and torch sees none here; --tiny runs all of it on a CPU")
    sizes = {name: (TINY if given.tiny else SIZES)[name] for name in given.sizes}
    settings = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "budget_s": given.budget, "tiny": given.tiny}
    settings |= {"parts": given.only, "layers": given.layers, "sizes": sizes}
    settings["compile_backend"] = "eager" if given.tiny else "inductor"
    device = "cpu" if given.tiny else "cuda"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse")  # sparse tensors are called a beta, and their checks are off
        execute(Run(given.out, device, sizes, given.layers, given.only, given.budget, empty(settings)))


def main(given: Sequence[str] | None = None) -> int:
    found = arguments(given)
    if found.prepare:
        from gpu_check.parts import prepare_layer

        prepare_layer(found.prepare, {name: SIZES[name] for name in found.sizes}, found.compiled)
        return 0
    if found.out is not None:
        measure(found)
    folder = found.out or found.page
    print(write_page(folder))
    return int(bool(wrong(load(folder))))


if __name__ == "__main__":
    sys.exit(main())
