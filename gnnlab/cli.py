"""The command `gnnlab`. Heavy packages load inside the command that needs them, so `gnnlab --help` answers at once."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from . import __version__

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
WIDTH_IN_A_FILE = 160  # columns of a table that goes to a file or a pipe
PROFILES = ("runtime", "memory", "flops", "scaling", "operators")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 1 a notebook failed, 2 bad input, 130 stopped by Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a Windows code page knows few characters
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as ended:  # argparse has printed the help, or what is wrong
        return int(ended.code or OK)
    try:
        code = arguments.command(arguments)
        sys.stdout.flush()
        return code
    except ValueError as error:
        if not type(error).__module__.startswith("gnnlab"):
            raise
        print(f"gnnlab: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has gone; whatever is left has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and takes -1e-3 for a number."""

    def __init__(self, **options):
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
        self._negative_number_matcher = re.compile(r"-\.?\d")  # argparse knows -1 and -.5 alone

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="gnnlab",
        description="What a graph neural network costs on your machine, and what makes it faster: measured.",
        epilog="Start with `gnnlab run`, then open outputs/quick/index.html. `gnnlab COMMAND --help` shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"gnnlab {__version__}")
    parser.set_defaults(command=lambda arguments: parser.print_help() or OK)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for add in (
        _add_run,
        _add_report,
        _add_claims,
        _add_compare,
        _add_params,
        _add_profile,
        _add_units,
        _add_stages,
        _add_plan,
        _add_infer,
    ):
        add(commands)
    return parser


def _command(commands, name: str, does: str, function, *, more: str = "", examples: str = "") -> _Parser:
    """A command whose help says what it does, then more of it, then examples."""
    parser = commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.{more and chr(10) * 2}{more}",
        epilog=f"examples:\n{examples}" if examples else None,
    )
    parser.set_defaults(command=function)
    return parser


def _add_params_set(parser: _Parser) -> None:
    parser.add_argument(
        "--params",
        metavar="SET",
        default="quick",
        help="parameter set: quick, full, gpu, npu, or a folder of YAML files named as the notebooks (default: quick)",
    )


# ---- run ------------------------------------------------------------------------------------------------------------


def _add_run(commands) -> None:
    parser = _command(
        commands,
        "run",
        "run notebooks and render the site of their results",
        _run,
        more="Notebooks run in the order of their needs, and only where parameters, code, inputs, versions or machine\n"
        "have changed since their last run. A failure leaves earlier results in place.",
        examples="  gnnlab run                                   every notebook, small\n"
        "  gnnlab run 01 --params full                  one notebook at full size\n"
        "  gnnlab run 02 --runs 5                       five times: what differs between processes is measured, too\n"
        "  gnnlab run 01 -p graphs '[my_graph.npz]' -p models '[my_models:make_gat]'\n"
        "  gnnlab run --params ~/my-params --force      parameters of your own, whatever has changed",
    )
    parser.add_argument("notebooks", nargs="*", metavar="NN", help="numbers of notebooks, as 01 (default: all)")
    _add_params_set(parser)
    parser.add_argument("--force", action="store_true", help="run what is unchanged, too")
    parser.add_argument(
        "--runs",
        type=_runs,
        default=1,
        metavar="N",
        help="run until there are N runs of each notebook named, each in a fresh process; the ledger pools them "
        "(%(default)s)",
    )
    parser.add_argument(
        "-p",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        dest="overrides",
        help="set one parameter in the notebooks that have it; lists as '[1, 2]' (`gnnlab params` shows them)",
    )


def _run(arguments) -> int:
    _load_jupyter_fast()
    from .lab import runner

    overrides = [tuple(pair) for pair in arguments.overrides]
    outcomes = runner.run(
        arguments.notebooks, arguments.params, force=arguments.force, runs=arguments.runs, overrides=overrides
    )
    return runner.exit_code(outcomes)


def _runs(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d?|100", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 100")
    return int(text)


# ---- report, claims, compare ----------------------------------------------------------------------------------------


def _add_report(commands) -> None:
    parser = _command(
        commands,
        "report",
        "render the site of the results that are there, without running anything",
        _report,
        examples="  gnnlab report\n  gnnlab report --params full",
    )
    _add_params_set(parser)


def _report(arguments) -> int:
    _load_jupyter_fast()
    from .lab import report, runner

    print(report.build_site(runner.output_folder(arguments.params)))
    return OK


def _add_claims(commands) -> None:
    parser = _command(
        commands,
        "claims",
        "print the ledger: what was claimed, what was measured here, the verdict",
        _claims,
        more="Claims of the documents and goals of the lab stand apart. All is computed from the result files of the\n"
        "folder and of its further runs (gnnlab run --runs).",
        examples="  gnnlab claims\n  gnnlab claims --params full --json > ledger.json\n"
        "  gnnlab claims ~/yesterday/quick --recompute   from the stored samples, on any machine",
    )
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="a folder of results (default: that of --params)")
    _add_params_set(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument(
        "--recompute",
        action="store_true",
        help="compute rows, intervals and verdicts again from the stored samples; exit code 1 where one differs",
    )


def _claims(arguments) -> int:
    from .lab import ledger, ledger_text, runner

    folder = _results(arguments.folder) if arguments.folder else runner.output_folder(arguments.params)
    if arguments.recompute:
        follows, lines = ledger_text.recomputed(folder)
        _show("\n".join(lines))
        return OK if follows else FAILED
    judged = ledger.judge(folder)
    _show(ledger_text.as_json(judged) if arguments.json else ledger_text.tables(judged))
    return OK


def _add_compare(commands) -> None:
    parser = _command(
        commands,
        "compare",
        "compare two runs: the change of every row with its interval",
        _compare,
        more="A and B are folders of results, single result files, or names of parameter sets. Several runs of a\n"
        "notebook are pooled. It says when machine, versions, parameters or commit differ.",
        examples="  gnnlab compare outputs/quick ~/yesterday/quick\n  gnnlab compare quick full --json",
    )
    parser.add_argument("a", metavar="A", help="the run to compare with")
    parser.add_argument("b", metavar="B", help="the run to compare")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _compare(arguments) -> int:
    from .lab import compare, compare_text

    comparison = compare.compare(_results(arguments.a), _results(arguments.b))
    _show(comparison.to_json() if arguments.json else compare_text.render(comparison))
    return OK


def _results(word: str) -> Path:
    """A folder or file of results, or the folder of a parameter set."""
    from .lab import runner

    path = Path(word).expanduser()
    return path if path.exists() else runner.output_folder(word)


# ---- params ---------------------------------------------------------------------------------------------------------


def _add_params(commands) -> None:
    parser = _command(
        commands,
        "params",
        "show the parameters of notebooks: name, type, default, meaning, what is allowed",
        _params,
        examples="  gnnlab params 01",
    )
    parser.add_argument("notebooks", nargs="*", metavar="NN", help="numbers of notebooks, as 01 (default: all)")


def _params(arguments) -> int:
    from rich.table import Table
    from rich.text import Text

    from .lab import discovery, parameters

    notebooks = discovery.select(discovery.notebooks(discovery.root()), arguments.notebooks)
    for notebook in notebooks:
        rows = parameters.describe(parameters.declared(notebook.path))
        table = Table(title=notebook.name, title_justify="left", box=None, pad_edge=False)
        for column in ("name", "type", "default", "meaning", "allowed"):
            table.add_column(column, overflow="fold", no_wrap=column in ("name", "type"))
        for row in rows:
            table.add_row(*map(Text, row.values()))
        _show(table)
    return OK


# ---- profile --------------------------------------------------------------------------------------------------------


def _add_profile(commands) -> None:
    parser = _command(
        commands,
        "profile",
        "profile one model on one graph: time, memory, FLOPs, scaling, operators",
        _profile,
        more="Built-in models are symptom_gat and graph_transformer; a model of your own is module:factory, where\n"
        "factory(data) returns a torch module. A graph is a built-in name (symptoms, digits, karate), a PyG dataset\n"
        "(planetoid:Cora), random:nodes=1000,edges=5000, or a file (.npz, GraphML, edge-list CSV).",
        examples="  gnnlab profile --model graph_transformer --profile runtime memory flops\n"
        "  gnnlab profile --model graph_transformer --hidden_dim 512 --num_layers 12 --num_nodes 1000\n"
        "  gnnlab profile --model my_models:make_gat --graph my_graph.npz --profile runtime operators\n"
        "  gnnlab profile --model symptom_gat --graph symptoms --json profile.json",
    )
    what = parser.add_argument_group("what")
    what.add_argument("--model", default="graph_transformer", help="a built-in name or module:factory (%(default)s)")
    what.add_argument("--graph", "--dataset", default=None, help="the graph (default: digits)")
    what.add_argument(
        "--profile",
        nargs="+",
        choices=PROFILES,
        default=["runtime", "memory", "flops"],
        metavar="WHAT",
        help=f"any of {', '.join(PROFILES)} (runtime memory flops)",
    )
    size = parser.add_argument_group("size of a built-in model, and of the graph")
    for name, help_ in (
        ("hidden_dim", "channels of a hidden layer"),
        ("num_layers", "layers"),
        ("num_heads", "attention heads"),
        ("ffn_dim", "channels inside the feed-forward network"),
        ("num_nodes", "nodes of a random graph, instead of --graph"),
        ("batch_size", "rows of a batch, where the model has one"),
    ):
        size.add_argument(f"--{name}", f"--{name.replace('_', '-')}", type=_count, metavar="N", help=help_)
    how = parser.add_argument_group("how")
    how.add_argument("--num_runs", "--num-runs", type=_count, default=100, metavar="N", help="runs (%(default)s)")
    how.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    how.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="JSON to FILE, or to the terminal without one"
    )


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,9}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _profile(arguments) -> int:
    from . import profile_command

    return profile_command.run(arguments)


# ---- stages ---------------------------------------------------------------------------------------------------------


def _add_stages(commands) -> None:
    parser = _command(
        commands,
        "stages",
        "export one GNN layer stage by stage and measure the stages on every processing unit",
        _stages,
        more="The same as notebooks 04 and 05, into the same folders: exported_models and stages of outputs/SET.\n"
        "A campaign that was stopped, or killed, goes on where it was. Delete outputs/SET/stages to measure all anew.",
        examples="  gnnlab stages --all\n"
        "  gnnlab stages --measure --params full\n"
        "  gnnlab stages --all --sizes 1000/10000 my_sizes.json graph:digits --units openvino:CPU torch:CPU\n"
        "  gnnlab stages --measure --blocks 1-5 6 7      a fused block and two stages",
    )
    _add_params_set(parser)
    for name, help_ in (
        ("export", "export the models that are missing or stale"),
        ("measure", "measure what is not known yet"),
        ("analyze", "merge the checkpoints that are there, and print the report"),
        ("all", "all three"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=help_)
    parser.add_argument("--sizes", nargs="+", metavar="SIZE", help="nodes/edges, study, a JSON file, or graph:NAME")
    parser.add_argument("--units", nargs="+", metavar="UNIT", help="names of units, as openvino:CPU (default: all)")
    parser.add_argument(
        "--blocks", nargs="+", metavar="BLOCK", help="3, 1-5, stages (each by itself), all (fused, too)"
    )


def _stages(arguments) -> int:
    from . import stages_command

    return stages_command.run(arguments)


# ---- plan -----------------------------------------------------------------------------------------------------------


def _add_plan(commands) -> None:
    parser = _command(
        commands,
        "plan",
        "choose which processing unit runs which stages of a layer, and carry it out",
        _plan,
        more="Needs the tables of notebook 06; notebook 07 measures how units slow each other down and compiles plans.",
        examples="  gnnlab plan --nodes 4000 --edges 9000\n"
        "  gnnlab plan --graph digits --execute\n"
        "  gnnlab plan --graph my_graph.npz --execute --parts 8       cut by METIS, its parts streamed\n"
        '  gnnlab plan --nodes 1000 --edges 9000 --plan \'[[["fast:CPU"],[1,2,3,4,5]],[["openvino:CPU"],[6,7]]]\'',
    )
    _add_params_set(parser)
    parser.add_argument("--nodes", type=_count, metavar="N", help="nodes of the graph")
    parser.add_argument("--edges", type=_count, metavar="E", help="edges of the graph")
    parser.add_argument("--graph", metavar="GRAPH", help="a graph: a name, random:..., or a file")
    parser.add_argument("--execute", action="store_true", help="run the layer on the graph by the plan")
    parser.add_argument("--parts", type=_count, default=1, metavar="N", help="cut the graph into parts (%(default)s)")
    parser.add_argument("--plan", metavar="PLAN", help="as [[units, stages, ratios], ...]; default: the best")
    parser.add_argument("--units", nargs="+", metavar="UNIT", help="units to plan with (default: this CPU's runtimes)")
    parser.add_argument(
        "--objective",
        choices=("throughput", "latency"),
        default="throughput",
        help="a stream of graphs, or one graph alone (%(default)s)",
    )


def _plan(arguments) -> int:
    from . import plan_command

    return plan_command.run(arguments, _show)


# ---- units ----------------------------------------------------------------------------------------------------------


def _add_units(commands) -> None:
    parser = _command(
        commands,
        "units",
        "show every processing unit: usable or not, why not, what to install",
        _units,
        more="Each is really tried, with a tiny inference in a process of its own, where a driver may hang or crash.\n"
        "A unit of your own is module:factory, where factory() returns a gnnlab.stages.units.unit.Unit.",
        examples="  gnnlab units\n  gnnlab units openvino:GPU openvino:NPU --json",
    )
    parser.add_argument("units", nargs="*", metavar="UNIT", help="names of units (default: all)")
    parser.add_argument("--json", action="store_true", help="as JSON")


def _units(arguments) -> int:
    from . import units_command

    return units_command.run(arguments, _show)


# ---- infer ----------------------------------------------------------------------------------------------------------


def _add_infer(commands) -> None:
    parser = _command(
        commands,
        "infer",
        "choose the node for the next task: states of edge networks in, decisions out, as JSON lines",
        _infer,
        more='A line in: {"nodes": [{"node_id": ..., "cpu_util": ..., ...}, ...], "links": [[id, id], ...]}.\n'
        "A line out: its number and the chosen node. A line that is no such state is answered by an error line,\n"
        "the others are answered all the same, and the exit code is 1.",
        examples="  gnnlab infer --model-type hybrid --device cpu < states.jsonl\n"
        "  gnnlab infer --model-type dqn --device cpu --quantize < states.jsonl\n"
        "  gnnlab infer --batch states.jsonl > decisions.jsonl\n"
        "  gnnlab infer --benchmark",
    )
    types = ("dqn", "ppo", "hybrid")
    parser.add_argument("--model-type", choices=types, default="hybrid", help="the model (%(default)s)")
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu (%(default)s)")
    parser.add_argument("--quantize", action="store_true", help="weights and activations in int8, on the CPU")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--batch", metavar="FILE", help="answer all lines of FILE together")
    what.add_argument("--benchmark", action="store_true", help="measure this predictor against the original path")


def _infer(arguments) -> int:
    from . import infer_command

    return infer_command.run(arguments, _show)


def _load_jupyter_fast() -> None:
    """Spare this process a parser of internationalized web addresses: jsonschema, which validates notebooks, loads it
    where it is installed, for seconds, and does without it where it is not. No notebook holds such addresses.
    """
    sys.modules.setdefault("rfc3987_syntax", None)


def _show(what: object) -> None:
    """Print text as it is, and anything else as rich renders it."""
    if isinstance(what, str):
        print(what)
        return
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_IN_A_FILE
    Console(width=wide).print(what)
