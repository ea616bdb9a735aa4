"""The parts of a run, one after the other in this process: tests, kernels, captured, compiled, notebooks."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .cases import Case, Layouts, draw_graph, free_memory, make_case, one_line, swap_case
from .checks import check
from .machine import ROOT, child, facts, test_counts
from .page import tests_line, write_page
from .rows import LARGEST, MODES, Size, save
from .times import captured_rows, race

NOTEBOOKS = ("01", "02", "03", "09")
BFLOAT16 = ("GCN", "SAGE", "GAT")  # layers measured in bfloat16, too, at arxiv's size
KEPT_EDGES = 2_000_000  # graphs up to this size are kept with their layers: other parts use them again
PREPARE_S = 60  # for compiling ahead, at most
TESTS_SHARE = 0.35  # of the budget, at most
CAPTURED_SHARE = 0.1  # of the budget, which the kernels leave for CUDA graphs


@dataclass
class Run:
    """Settings and results of one run. `results` is what gpu_check.json holds."""

    folder: Path
    device: str
    sizes: dict[str, Size]
    layers: tuple[str, ...]
    parts: tuple[str, ...]
    budget_s: float
    results: dict
    start: float = field(default_factory=time.monotonic)
    kept: dict = field(default_factory=dict)

    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.start)

    def add(self, table: str, *rows: dict) -> None:
        self.results[table] += rows
        save(self.folder, self.results)

    def miss(self, what: str) -> None:
        """Note what was not measured, and why."""
        print(f"not measured: {what}", flush=True)
        self.add("missed", {"what": what})

    def graph(self, size: str) -> Tensor:
        """(2, E) edges of a size: the same tensor in all parts, but for the largest sizes, which are drawn again."""
        if size in self.kept:
            return self.kept[size]
        edges = draw_graph(self.sizes[size], self.device)
        if edges.shape[1] <= KEPT_EDGES:
            self.kept[size] = edges
        return edges

    def case(self, name: str, size: str, dtype: str, edges: Tensor) -> Case:
        """A layer on a graph, swapped; the one made before where it was kept."""
        key = name, size, dtype
        if key in self.kept:
            return self.kept[key]
        case = make_case(name, size, self.sizes[size], dtype, edges)
        swap_case(case)
        if edges.shape[1] <= KEPT_EDGES:
            self.kept[key] = case
        return case

    @contextmanager
    def survives(self, what: str) -> Iterator[None]:
        """An error is a row and not the end of the run. Out of memory is a result, any other error a problem."""
        try:
            yield
        except torch.OutOfMemoryError:
            self.miss(f"{what}: out of memory")
        except Exception as problem:
            traceback.print_exc(limit=6)
            self.add("problems", {"what": what, "why": one_line(problem)})


class Pace:
    """Does one more cell fit into what is left? It is expected to take as long as the longest of the last three."""

    def __init__(self, run: Run, guess_s: float, reserve_s: float = 0.0) -> None:
        self.run, self.reserve_s, self.spent_s = run, reserve_s, []
        self.guess_s = guess_s if run.device == "cuda" else 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.spent_s.append(time.monotonic() - start)

    def fits(self, what: str) -> bool:
        expected = max(self.spent_s[-3:], default=self.guess_s)
        left = self.run.left_s() - self.reserve_s
        if left < expected:
            self.run.miss(f"{what}: {max(0.0, left):.0f} s were left for it, it needs about {expected:.0f} s")
        return left >= expected


def tests(run: Run) -> None:
    """The tests that need a CUDA device, in a process of its own, and the names of those that fail."""
    if run.device != "cuda":
        return run.miss("tests: they need a CUDA device")
    limit = min(TESTS_SHARE * run.budget_s, run.left_s())
    folders = [one for one in ("tests/cuda", "tests/gnnswap") if (ROOT / one).is_dir()]
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-m", "cuda", *folders, "-p", "no:cacheprovider"]
    command += ["-o", "addopts=", "-W", "ignore::pytest.PytestConfigWarning", "--tb=short"]
    status, text = child(command, limit, run.folder / "tests.log")
    shown = " ".join(["python", *command[1:]])
    run.results["tests"] = {"command": shown, "status": status, "limit_s": round(limit, 1)} | test_counts(text)
    print(f"tests: {tests_line(run.results['tests'])}", flush=True)
    return save(run.folder, run.results)


def prepare(run: Run) -> None:
    """Kernels are compiled by a process a layer, all at once, on small graphs of the same density and width; Triton and
    Inductor keep what they compiled on disk, so that the parts below spend their time on measuring."""
    if run.device != "cuda":
        return run.miss("compiling ahead: it needs a CUDA device")
    script, sizes = str(ROOT / "scripts" / "gpu_check.py"), ",".join(run.sizes)
    more = ["--compiled"] if "compiled" in run.parts else []
    commands = [[sys.executable, script, "--prepare", name, "--sizes", sizes, *more] for name in run.layers]
    running = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for one in commands]
    for name, process in zip(run.layers, running, strict=True):
        try:
            problem = process.communicate(timeout=max(1, min(PREPARE_S, run.left_s())))[1]
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            problem = f"stopped after {PREPARE_S} s"
        if process.returncode:
            run.miss(f"compiling ahead for {name}: {(problem.strip().splitlines() or ['no reason given'])[-1][:200]}")
    return None


def prepare_layer(name: str, sizes: dict[str, Size], compiled: bool) -> None:
    """What a process of `prepare` does."""
    for size, shape in sizes.items():
        nodes = min(shape.nodes, 20_000)
        small = Size(nodes, round(shape.edges * nodes / shape.nodes), shape.inputs, shape.outputs)
        edges = draw_graph(small, "cuda")
        for dtype in ("float32", "bfloat16") if size == "arxiv" and name in BFLOAT16 else ("float32",):
            case = make_case(name, size, small, dtype, edges)
            swap_case(case)
            for mode in MODES:
                case.call(case.faster, mode)()
    for size in (one for one in ("arxiv", "20k") if compiled and one in sizes):
        torch.compiler.reset()
        case = make_case(name, size, sizes[size], "float32", draw_graph(sizes[size], "cuda"))
        variant = compiled_variant(case, "inductor")
        for mode in MODES:
            case.call(variant, mode)()


def kernels(run: Run) -> None:
    """Correctness and times of every layer in float32, and of three layers in bfloat16 at arxiv's size."""
    groups = [(size, "float32", run.layers) for size in run.sizes if size not in LARGEST]
    if "arxiv" in run.sizes:
        groups.append(("arxiv", "bfloat16", tuple(name for name in run.layers if name in BFLOAT16)))
    measure_all(run, groups, "kernels")


def large(run: Run) -> None:
    """The same at the largest sizes."""
    measure_all(run, [(size, "float32", run.layers) for size in run.sizes if size in LARGEST], "large")


def measure_all(run: Run, groups: list[tuple[str, str, tuple[str, ...]]], part: str) -> None:
    """Each of the layers of each (size, type, layers), as long as the budget lasts."""
    reserve = CAPTURED_SHARE * run.budget_s if "captured" in run.parts and part == "kernels" else 0.0
    for size, dtype, names in groups:
        pace = Pace(run, 6 + run.sizes[size].edges / 4e6, reserve)
        layouts = None
        for name in names:
            what = f"{name} in {dtype} at {size}"
            if not pace.fits(what):
                continue
            with run.survives(what), pace.timed():
                layouts = layouts or Layouts(run.graph(size), run.sizes[size].nodes)
                measure(run, name, dtype, size, layouts, part)
            free_memory(run.device)
        write_page(run.folder)


def measure(run: Run, name: str, dtype: str, size: str, layouts: Layouts, part: str) -> None:
    """One layer on one graph: is it right, and how long does it take?"""
    case = run.case(name, size, dtype, layouts.edges)
    run.add("checks", check(case))
    for mode in MODES:
        free_memory(run.device)
        compare_times(run, case, mode, {**layouts.variants(case), "swap": case.faster}, part)


def compare_times(run: Run, case: Case, mode: str, variants: dict, part: str) -> None:
    rows = race(case, mode, variants, part)
    run.add("times", *rows)
    said = ", ".join(f"{row['variant']} {row['median']:.3g}" for row in rows if "median" in row)
    print(f"{part}: {case.size} {case.name} {case.dtype} {mode}: {said} ms, {run.left_s():.0f} s left", flush=True)


def compiled(run: Run) -> None:
    """PyG's layers through torch.compile, in the same rounds as the other variants. Most of the time is compiling."""
    pace = Pace(run, guess_s=20)
    for size in (one for one in ("arxiv", "20k") if one in run.sizes):
        for name in run.layers:
            what = f"torch.compile of {name} at {size}"
            if not pace.fits(what):
                continue
            with run.survives(what), pace.timed():
                torch.compiler.reset()  # else compiled code of other layers counts towards its limits
                case = run.case(name, size, "float32", run.graph(size))
                variants = Layouts(case.edges, run.sizes[size].nodes).variants(case)
                del variants["EdgeIndex"]  # which `kernels` has beside the others
                variants["torch.compile"] = compiled_variant(case, run.results["settings"]["compile_backend"])
                for mode in MODES:
                    compare_times(run, case, mode, {**variants, "swap": case.faster}, "compiled")
            free_memory(run.device)


def compiled_variant(case: Case, backend: str) -> Callable[[Tensor], Tensor]:
    layer = torch.compile(case.layer, backend=backend)
    return lambda x: layer(x, case.edges, *case.extra)


def captured(run: Run) -> None:
    """swap's model and PyG's on a fixed graph: launched kernel by kernel, and as one CUDA graph, in the same rounds."""
    if run.device != "cuda":
        return run.miss("CUDA graphs: they need a CUDA device")
    pace = Pace(run, guess_s=5)
    for size in (one for one in ("cora", "20k") if one in run.sizes):
        for name in run.layers:
            what = f"CUDA graphs of {name} at {size}"
            if not pace.fits(what):
                continue
            with run.survives(what), pace.timed():
                case = run.case(name, size, "float32", run.graph(size))
                for mode in MODES:
                    run.add("captured", *captured_rows(case, mode))
            free_memory(run.device)
    return None


def notebooks(run: Run) -> None:
    """The notebooks that have parameters for a GPU, one after the other, with the time that is left."""
    if run.device != "cuda":
        return run.miss("notebooks: their parameters need a CUDA device")
    if importlib.util.find_spec("papermill") is None:
        return run.miss("notebooks: papermill is not installed here")
    for number in NOTEBOOKS:
        if run.left_s() < 20:
            run.miss(f"notebook {number}: {max(0.0, run.left_s()):.0f} s were left for it")
            continue
        start = time.monotonic()
        command = [sys.executable, "-m", "gnnlab", "run", number, "--params", "gpu"]
        status, text = child(command, run.left_s(), run.folder / f"notebook-{number}.log")
        said = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        seconds = round(time.monotonic() - start, 1)
        run.add("notebooks", {"notebook": number, "status": status, "seconds": seconds, "said": said[:300]})
    return None


PART = {"tests": tests, "prepare": prepare, "kernels": kernels, "captured": captured, "compiled": compiled}
PART |= {"large": large, "notebooks": notebooks}


def execute(run: Run) -> None:
    """All parts that were asked for, in their order. The file and the page are written after each."""
    gc.collect()
    gc.freeze()  # modules and what they made stay: the collections between cells need not look at them again
    save(run.folder, run.results)
    start = time.monotonic()
    with run.survives("facts of the machine"):
        run.results["facts"] = facts(run.device)
    run.results["seconds"]["facts"] = round(time.monotonic() - start, 1)
    for name in run.parts:
        start = time.monotonic()
        with run.survives(name):
            free_memory(run.device)
            PART[name](run)
        run.results["seconds"][name] = round(time.monotonic() - start, 1)
        save(run.folder, run.results)
        write_page(run.folder)
    gc.unfreeze()
    run.results["finished"] = True
    save(run.folder, run.results)
