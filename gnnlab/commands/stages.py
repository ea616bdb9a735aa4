"""Export one GNN layer stage by stage and measure the stages on every device.

The same as notebooks 04 and 05, into the same folders: exported_models and stages of outputs/SET; with sizes,
devices or blocks of your own into outputs/lab, so that what gnnlab run left stays. --analyze writes S4's files
of all that is known, and lookup_table.json and bandwidth_table.json in tables beside them, for which it
measures copies. A sweep that was stopped, or killed, goes on where it was.

examples:
  gnnlab stages --all
  gnnlab stages --all --params npu      the whole of S4 where there is an NPU
  gnnlab stages --all --sizes 1000x10000 my_sizes.json graph:digits --devices openvino:CPU torch:CPU
  gnnlab stages --measure --devices openvino:NPU      phase 2 alone; what phase 1 measured stays
  gnnlab stages --measure --blocks 1-5 6 7      a fused block and two stages
  gnnlab stages --measure --cluster tcp://10.0.0.1:8786      on machines that hold the devices
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from types import SimpleNamespace

from gnnlab.errors import GnnlabError

from .terminal import add_params, say, warn_if_busy

CHOICES = ("sizes", "devices", "blocks")  # with one of them, results go to outputs/lab
OPTIONS = (*CHOICES, "models", "features", "precision", "threads", "budget_s", "force", "cluster")


def add_arguments(parser: ArgumentParser) -> None:
    add_params(parser)
    parser.add_argument("--export", action="store_true", help="export the models that are missing or stale")
    parser.add_argument("--measure", action="store_true", help="measure what is not known yet")
    parser.add_argument("--analyze", action="store_true", help="print the report, write S4's files and both tables")
    parser.add_argument("--all", action="store_true", help="all three")
    what = "as 1000x10000 (nodes x edges), study, a JSON file, or graph:NAME"
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help=what)
    parser.add_argument("--devices", nargs="+", metavar="DEVICE", help="openvino:CPU, module:factory (default: all)")
    parser.add_argument("--blocks", nargs="+", metavar="BLOCK", help="3, 1-5, stages (each alone), all (fused, too)")
    what = "of a Dask scheduler whose workers measure; each declares its processor, as in `dask worker ADDRESS "
    what += '--nthreads 1 --resources "NPU=1"` (needs gnnlab[cluster], and a folder of models that all see)'
    parser.add_argument("--cluster", metavar="ADDRESS", help=what)


def run(arguments: Namespace) -> int:
    """Export, measure and analyze, as far as the options ask for; prints a line for each step, then the report."""
    from gnnlab.lab.results import only_run
    from gnnlab.stages import devices

    steps = [step for name, step in STEPS.items() if arguments.all or getattr(arguments, name)]
    if not steps:
        raise GnnlabError("nothing to do; give --export, --measure, --analyze, or --all for the three of them")
    given, folder = _parameters(arguments)
    for name in given.devices:
        devices.find(name)
    sizes = ", ".join(f"{size} ({size.graph})" for size in given.sizes)
    print(f"sizes {sizes}; blocks {', '.join(given.blocks)}; devices {', '.join(given.devices) or 'all'}", flush=True)
    with only_run(folder):
        for step in steps:
            step(given, folder)
    return 0


def _export(given: SimpleNamespace, folder: Path) -> None:
    from gnnlab.stages.export import export_all
    from gnnlab.stages.sizes import layer_of

    layer, at = layer_of("sage", given.features), [size[:2] for size in given.sizes]
    models, blocks = folder / "exported_models", layer.blocks(given.blocks)
    exported = export_all(layer, at, models, blocks=blocks, static_sums=given.static_sums)
    say(f"export: {len(exported)} models in {models}, {sum(model.ready for model in exported)} ready")
    for model in exported:
        if not model.ready:
            say(f"  {model.name}: {model.status}, {model.reason}")


def _measure(given: SimpleNamespace, folder: Path) -> None:
    from gnnlab.stages import measure, rows

    if given.cluster is None:
        warn_if_busy()
    sweep = measure.measure(folder / "stages", **{name: getattr(given, name) for name in OPTIONS})
    for line in sweep.messages:
        say(f"measure: {line}")
    for gap in rows.gaps(sweep.frame).itertuples():
        say(f"  {gap.status}, {gap.measurements} of {gap.device}: {gap.reason}")


def _analyze(given: SimpleNamespace, folder: Path) -> None:
    """S4's files and report of all that is known, then the two tables; copies are measured as far as needed."""
    from gnnlab import bandwidth
    from gnnlab.bandwidth.tables import S4Tables
    from gnnlab.stages import journal

    stages, tables = folder / "stages", folder / "tables"
    journal.write_files(stages)
    print((stages / journal.REPORT).read_text(encoding="utf-8"), end="", flush=True)
    frame = journal.read(stages)
    if frame.loc[frame["ms"].notna(), "fused"].all():
        say("analyze: no stage was timed by itself, so there are no tables of stages; --blocks stages measures them")
        return
    options = {"test_sizes": 0, "points": given.tables["points"], "budget_s": given.tables["budget_s"]}
    measured = bandwidth.measure(tables, stages=stages, models=given.models, cluster=given.cluster, **options)
    S4Tables(measured.fit, measured.copies).write(tables)
    say(f"analyze: lookup_table.json and bandwidth_table.json in {tables}")


STEPS = {"export": _export, "measure": _measure, "analyze": _analyze}


def _parameters(arguments: Namespace) -> tuple[SimpleNamespace, Path]:
    """Parameters of notebook 05 over those of 04, options over both, those of 06 as `tables`; and the results folder:
    outputs/lab if options were given with a set of the repository, else that of the set. `models` are the exported
    ones of this folder or, where it has none, of that of the set.
    """
    from gnnlab.lab import discovery
    from gnnlab.stages import sizes

    request = discovery.request(("04", "05", "06"), arguments.params)
    root, (of_04, of_05, of_06) = discovery.root(), (request.values[path.stem] for path in request.chosen)
    named = {name: value for name in CHOICES if (value := getattr(arguments, name))}
    values = of_04 | of_05 | named | {"tables": of_06, "cluster": arguments.cluster}
    own = named and request.params.parent == root / "params"
    place = root / discovery.LAB if own else request.folder  # what a run left stays as it is
    exports = arguments.all or arguments.export or (place / "exported_models").exists()
    values["models"] = (place if exports else request.folder) / "exported_models"
    # a file lies where the command was given, not in the repository
    values["sizes"] = sizes.read(values["sizes"], Path() if "sizes" in named else root)
    return SimpleNamespace(**values), place
