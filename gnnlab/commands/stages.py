"""Export one GNN layer stage by stage and measure the stages on every processing unit.

The same as notebooks 04 and 05, into the same folders: exported_models and stages of outputs/SET; with sizes,
units or blocks of your own into outputs/lab, so that what gnnlab run left stays. --analyze ends with S4's
lookup_table.json and bandwidth_table.json in tables beside them, for which it measures copies. A campaign that
was stopped, or killed, goes on where it was. Delete its folder stages to measure all anew.

examples:
  gnnlab stages --all
  gnnlab stages --all --params npu      the whole of S4 where there is an NPU
  gnnlab stages --all --sizes 1000/10000 my_sizes.json graph:digits --units openvino:CPU torch:CPU
  gnnlab stages --measure --blocks 1-5 6 7      a fused block and two stages
  gnnlab stages --measure --cluster tcp://10.0.0.1:8786      on machines that hold the devices
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gnnlab.errors import GnnlabError

from .arguments import add_params
from .tables import say, warn_if_busy

CAMPAIGN, TABLES = ("04", "05"), "06"  # the notebooks whose parameters count


def add_arguments(parser: ArgumentParser) -> None:
    add_params(parser)
    parser.add_argument("--export", action="store_true", help="export the models that are missing or stale")
    parser.add_argument("--measure", action="store_true", help="measure what is not known yet")
    what = "merge the checkpoints, print the report, write both tables"
    parser.add_argument("--analyze", action="store_true", help=what)
    parser.add_argument("--all", action="store_true", help="all three")
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help="nodes/edges, study, a JSON file, or graph:NAME")
    what = "units, as openvino:CPU or module:factory (default: all)"
    parser.add_argument("--units", nargs="+", metavar="UNIT", help=what)
    what = "3, 1-5, stages (each by itself), all (fused, too)"
    parser.add_argument("--blocks", nargs="+", metavar="BLOCK", help=what)
    what = "of a Dask scheduler whose workers measure; each declares its processor, as in `dask worker ADDRESS "
    what += '--nthreads 1 --resources "NPU=1"` (needs gnnlab[cluster], and a folder of models that all see)'
    parser.add_argument("--cluster", metavar="ADDRESS", help=what)


def run(arguments: Namespace) -> int:
    """Export, measure and analyze, as far as the options ask for; prints a line for each step, then the report."""
    from gnnlab.lab.results import only_run
    from gnnlab.units import registry

    steps = [name for name in ("export", "measure", "analyze") if arguments.all or getattr(arguments, name)]
    if not steps:
        raise GnnlabError("nothing to do; give --export, --measure, --analyze, or --all for the three of them")
    given, folder = _parameters(arguments)
    registry.tried(given.units)
    sizes = ", ".join(f"{size} ({size.graph})" for size in given.sizes)
    print(f"sizes {sizes}; blocks {', '.join(given.blocks)}; units {', '.join(given.units)}", flush=True)
    with only_run(folder):
        for step in steps:
            _STEPS[step](given, folder)
    return 0


def _export(given: SimpleNamespace, folder: Path) -> None:
    from gnnlab.campaign.cells import layer_of
    from gnnlab.export.export import export_all

    layer = layer_of(given.layer, given.features)
    blocks = layer.blocks(given.blocks)
    at = [(size.nodes, size.edges) for size in given.sizes]
    exported = export_all(layer, at, folder / "exported_models", blocks=blocks, static_sums=given.static_sums)
    fresh, ready = sum(model.fresh for model in exported), sum(model.status == "ready" for model in exported)
    say(f"export: {len(exported)} models in {folder / 'exported_models'}, {fresh} of them made now, {ready} ready")
    for model in exported:
        if model.status != "ready":
            say(f"  {model.name}: {model.status}, {model.reason}")


def _measure(given: SimpleNamespace, folder: Path) -> None:
    from gnnlab.campaign import campaign, table

    if given.cluster is None:
        warn_if_busy()
    options = {name: getattr(given, name) for name in _OPTIONS}
    measured = campaign.measure(folder / "stages", names=given.units, **options)
    for line in measured.messages:
        say(f"measure: {line}")
    for gap in table.gaps(measured.cells).itertuples():
        say(f"  {gap.status}, {gap.cells} of {gap.unit}: {gap.reason}")


def _analyze(given: SimpleNamespace, folder: Path) -> None:
    """The report of what was measured, then S4's two tables; copies are measured as far as they are not known."""
    from gnnlab.campaign import campaign, checkpoints, table
    from gnnlab.prediction import bandwidth, copies, tables

    cells = campaign.analyze(folder / "stages")
    print((folder / "stages" / checkpoints.REPORT).read_text(encoding="utf-8"), end="", flush=True)
    names = [name for name in given.units if name in set(table.measured(cells)["unit"])]
    if names and all(map(copies.sums_only, names)):
        only = f"{', '.join(names)} has only blocks that sum over neighbours and copies nothing by itself"
        say(f"analyze: {only}: no tables of stages; name another unit beside it, such as torch:CPU")
        return
    options = {name: given.tables[name] for name in ("points", "budget_s", "timeout_s", "seed")}
    options |= {"models": given.models, "names": names, "off_grid": 0, "again": 0, "cluster": given.cluster}
    measured = bandwidth.measure(folder / "tables", stages=folder / "stages", **options)
    if measured.grid.loc[measured.grid["ms"].notna(), "fused"].all():
        say("analyze: no stage was timed by itself, so there are no tables of stages; --blocks stages measures them")
        return
    counts = tables.S4Tables(measured.grid, measured.copies).write(folder / "tables")
    written = ", ".join(f"{count} {what}" for what, count in counts.items())
    say(f"analyze: {tables.LOOKUP} and {tables.BANDWIDTH} in {folder / 'tables'}: {written}")


_OPTIONS = ("models", "sizes", "blocks", "layer", "features", "precision", "threads", "budget_s", "timeout_s", "seed")
_OPTIONS += ("cluster",)
_STEPS = {"export": _export, "measure": _measure, "analyze": _analyze}


def _parameters(arguments: Namespace) -> tuple[SimpleNamespace, Path]:
    """Parameters from params/SET, notebook 05 over 04, command-line options over both (06's go to `tables`), and the
    results folder: outputs/lab if options were given with a set of the repository, else that of the set. `models` are
    the exported ones, of this folder or, where it has none, of that of the set.
    """
    from gnnlab.campaign import sizes
    from gnnlab.lab import discovery

    request = discovery.request((*CAMPAIGN, TABLES), arguments.params)
    root, params, folder = discovery.root(), request.params, request.folder
    values: dict[str, Any] = {}
    for notebook in request.chosen:
        checked = request.values[notebook.stem]
        values |= {"tables": checked} if notebook.stem.startswith(TABLES) else checked
    named = {name: getattr(arguments, name) for name in ("sizes", "units", "blocks")}
    if named["sizes"]:  # a file lies where the command was given, not in the repository
        named["sizes"] = [str(Path(text).resolve()) if text.endswith(".json") else text for text in named["sizes"]]
    values |= {name: value for name, value in named.items() if value} | {"cluster": arguments.cluster}
    own = any(named.values()) and params.parent == root / "params"
    place = root / discovery.LAB if own else folder  # what a run left stays as it is
    exports = arguments.all or arguments.export or (place / "exported_models").exists()
    values["models"] = (place if exports else folder) / "exported_models"
    values["sizes"] = sizes.read(values["sizes"], root)
    return SimpleNamespace(**values), place
