"""The report of a GPU (scripts/gpu_check.py), by its tiny run on a CPU: rows, page, wrong results, kills."""

import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "gpu_check.py"
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_check import cases, checks, machine, page, parts, rows, times  # noqa: E402

from gnnswap.errors import SwapError  # noqa: E402

spec = importlib.util.spec_from_file_location("gpu_check_command", SCRIPT)
command = importlib.util.module_from_spec(spec)
spec.loader.exec_module(command)

FEW = "GCN", "GAT", "GINE"  # a sum, attention and features of edges
SHORT = ("--tiny", "--only", "kernels", "--sizes", "cora")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """All of a tiny run, in a process of its own: (folder, results, page, exit status)."""
    folder = tmp_path_factory.mktemp("gpu") / "report"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--tiny", "--out", folder, "--layers", ",".join(FEW)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert (folder / "gpu_check.json").exists(), done.stderr
    return folder, rows.load(folder), (folder / "index.md").read_text(encoding="utf-8"), done


def a_case(name, size="arxiv", dtype="float32"):
    shape = rows.TINY[size]
    case = cases.make_case(name, size, shape, dtype, cases.draw_graph(shape, "cpu"))
    cases.swap_case(case)
    return case


class Planted(torch.nn.Module):
    """A layer whose output, or whose gradients alone, are off by a tenth of a percent."""

    def __init__(self, layer, gradients_alone):
        super().__init__()
        self.layer, self.gradients_alone = layer, gradients_alone

    def forward(self, *inputs):
        out = self.layer(*inputs)
        more = 1e-3 * out
        return out + (more - more.detach() if self.gradients_alone else more)


def plant(monkeypatch, make):
    """`swap` gives what `make` makes of the layer."""
    real = cases.swap

    def planted(layer, *example):
        report = real(layer, *example, measure=False)
        report.model = make(layer)
        return report

    monkeypatch.setattr(cases, "swap", planted)


# ---- the tiny run ----------------------------------------------------------------------------------------------------


def test_a_tiny_run_finishes_and_finds_nothing_wrong(tiny):
    _, results, text, done = tiny
    assert done.returncode == 0, done.stderr
    assert results["finished"] and not results["problems"]
    assert "- Nothing that was measured is wrong." in text and "A tiny run on a CPU" in text
    assert text in done.stdout  # the terminal shows the same tables


def test_every_layer_is_compared_at_every_size(tiny):
    _, results, _, _ = tiny
    found = {(row["layer"], row["size"], row["dtype"]) for row in results["checks"]}
    low = {(layer, "arxiv", "bfloat16") for layer in ("GCN", "GAT")}
    assert found == {(layer, size, "float32") for layer in FEW for size in rows.TINY} | low
    for row in results["checks"]:
        assert row["error"] <= row["allowed"] and not row["wrong"] and row["bit_equal"]
        assert row["nodes_compared"] == rows.TINY[row["size"]].nodes
        assert len(row["replaced"]) + len(row["kept"]) == 1 and row["report"] and row["swap_s"] > 0


def test_rows_of_times_have_their_rounds_and_an_interval_around_their_median(tiny):
    _, results, _, _ = tiny
    found = {
        (row["part"], row["layer"], row["size"], row["dtype"], row["mode"], row["variant"]): row
        for row in results["times"]
    }
    assert len(found) == len(results["times"])
    for layer in FEW:
        for size in rows.TINY:
            for mode in rows.MODES:
                for variant in ("PyG", "EdgeIndex", "CSR", "swap"):
                    part = "large" if size in rows.LARGEST else "kernels"
                    row = found[part, layer, size, "float32", mode, variant]
                    assert row["n"] == len(row["rounds_ms"]) >= 3 and min(row["rounds_ms"]) > 0
                    assert row["median"] == statistics.median(row["rounds_ms"])
                    assert row["n"] < 6 or row["low"] <= row["median"] <= row["high"]
                    assert row["difference"] < 1e-5 and row["peak_mib"] is None
        assert "median" in found["compiled", layer, "20k", "float32", "training", "torch.compile"]


def test_the_page_has_every_layer_in_every_table_and_numbers_of_rows(tiny):
    _, results, text, _ = tiny
    for heading in ("## Are the results right?", *(f"### {size}, float32" for size in rows.TINY), "## What swap chose"):
        table = text.split(heading + "\n")[1].split("\n#")[0]
        assert [layer for layer in FEW if f"| {layer} |" not in table] == []
    row = next(row for row in results["times"] if row["variant"] == "swap" and row["size"] == "cora")
    line = next(one for one in text.split("### cora, float32")[1].splitlines() if one.startswith("| GCN | forward |"))
    assert f"| {page.number(row['median'])} [" in line
    assert "- CUDA graphs: they need a CUDA device" in text and "- tests: they need a CUDA device" in text


def test_the_page_is_the_same_again_from_the_json_alone(tiny, tmp_path, capsys):
    folder, _, text, _ = tiny
    (tmp_path / "gpu_check.json").write_bytes((folder / "gpu_check.json").read_bytes())
    assert command.main(["--page", str(tmp_path)]) == 0
    assert (tmp_path / "index.md").read_text(encoding="utf-8") == text
    assert capsys.readouterr().out == text + "\n"


def test_a_killed_run_leaves_its_rows_and_a_page_says_that_it_did_not_finish(tmp_path, capsys):
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--tiny", "--out", tmp_path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(1200):
            time.sleep(0.1)
            if (tmp_path / "gpu_check.json").exists() and len(rows.load(tmp_path)["times"]) >= 8:
                break
    finally:
        process.kill()
        process.wait()
    results = rows.load(tmp_path)
    assert len(results["times"]) >= 8 and not results["finished"]
    command.main(["--page", str(tmp_path)])
    assert "**This run did not finish**" in capsys.readouterr().out


# ---- what is wrong is said -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients_alone", [False, True])
def test_an_injected_error_is_reported_as_wrong_and_makes_the_status_1(monkeypatch, tmp_path, gradients_alone):
    plant(monkeypatch, lambda layer: Planted(layer, gradients_alone))
    assert command.main([*SHORT, "--layers", "SAGE", "--out", str(tmp_path)]) == 1
    (row,) = rows.load(tmp_path)["checks"]
    assert row["wrong"] and row["error"] == pytest.approx(1e-3, rel=0.05)
    assert not (gradients_alone and row["of"] == "output")
    text = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "| SAGE | cora | float32 | **wrong** |" in text and "- **1 wrong:** SAGE in float32 at cora" in text


def test_results_that_are_not_finite_are_wrong_and_valid_json(monkeypatch, tmp_path):
    class NotFinite(Planted):
        def forward(self, *inputs):
            return self.layer(*inputs) * math.nan

    plant(monkeypatch, lambda layer: NotFinite(layer, False))
    assert command.main([*SHORT, "--layers", "GIN", "--out", str(tmp_path)]) == 1
    constants = []
    text = (tmp_path / "gpu_check.json").read_text(encoding="utf-8")
    results = json.loads(text, parse_constant=constants.append)
    assert not constants and results["checks"][0]["error"] is None
    assert "not finite or missing" in (tmp_path / "index.md").read_text(encoding="utf-8")


def test_an_error_in_one_layer_is_a_problem_and_the_others_are_measured(monkeypatch, tmp_path, capsys):
    class Broken(torch.nn.Module):
        def forward(self, *inputs):
            raise ValueError("no such kernel")

    real = cases.swap

    def planted(layer, *example):
        report = real(layer, *example, measure=False)
        if type(layer).__name__ == "GCNConv":
            report.model = Broken()
        return report

    monkeypatch.setattr(cases, "swap", planted)
    assert command.main([*SHORT, "--layers", "GCN,SAGE", "--out", str(tmp_path)]) == 1
    results = rows.load(tmp_path)
    assert results["problems"] == [{"what": "GCN in float32 at cora", "why": "ValueError: no such kernel"}]
    assert {row["layer"] for row in results["times"]} == {"SAGE"} and results["finished"]
    assert "GCN in float32 at cora: ValueError: no such kernel" in capsys.readouterr().out


def test_out_of_memory_is_a_result_and_nothing_wrong(tmp_path):
    case = a_case("GCN", "cora")

    def too_large(x):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")

    found = times.race(case, "training", {"PyG": too_large, "CSR": case.own, "swap": case.faster}, "kernels")
    assert found[0]["why"] == "out of memory" and "median" not in found[0]
    assert "median" in found[1] and "difference" not in found[2]
    variants = {row["variant"]: row for row in found}
    assert page.over_pyg(variants) is None and page.over_best(variants)["n"] == found[2]["n"]
    assert page.time_cell(found[0]) == "out of memory"


def test_a_layer_whose_example_does_not_fit_is_swapped_without_one(monkeypatch):
    real = cases.swap

    def small(layer, *example):
        if example:
            raise SwapError("GCNConv does not run on the example: OutOfMemoryError")
        return real(layer)

    monkeypatch.setattr(cases, "swap", small)
    case = a_case("GCN", "cora")
    assert case.swapped["note"].startswith("swapped without an example") and "out of" not in case.swapped["report"]
    assert case.swapped["replaced"][0][1] == "GCNConv" and not checks.compare(case)["wrong"]


def test_a_baseline_with_another_result_does_not_count():
    row = {"dtype": "float32", "layer": "GAT", "median": 2.0, "rounds_ms": [2.0] * 6, "difference": 0.0}
    variants = {
        "PyG": {**row, "variant": "PyG"},
        "CSR": {**row, "variant": "CSR", "median": 1.0, "rounds_ms": [1.0] * 6, "difference": 0.5},
        "swap": {**row, "variant": "swap", "median": 0.5, "rounds_ms": [0.5] * 6},
    }
    assert page.over_best(variants)["median"] == 4 and page.best_name(variants) == "PyG"
    variants["CSR"]["difference"] = 1e-6
    assert page.over_best(variants)["median"] == 2 and page.best_name(variants) == "CSR"


# ---- references of a share of the nodes, CUDA graphs -----------------------------------------------------------------


@pytest.mark.parametrize("name", rows.LAYERS)
def test_a_share_of_the_nodes_has_the_same_reference(name):
    case = a_case(name)
    found = checks.compare(case, share=0.3)
    assert 10 <= found["nodes_compared"] < rows.TINY["arxiv"].nodes and not found["wrong"]
    case.fast = Planted(case.layer, gradients_alone=True)
    assert checks.compare(case, share=0.3)["wrong"]


class Replayed:
    """Stands for a CUDA graph: it writes what the call gives into the tensors of its capture, or, stale, nothing."""

    def __init__(self, call, stale):
        self.call, self.written, self.stale = call, call(), stale

    def replay(self):
        if not self.stale:
            for tensor, new in zip(self.written, self.call(), strict=True):
                tensor.copy_(new)


@pytest.mark.parametrize("mode", rows.MODES)
@pytest.mark.parametrize("stale", [False, True])
def test_a_replay_that_does_not_compute_again_is_wrong(monkeypatch, mode, stale):
    def capture(call):
        graph = Replayed(call, stale)
        return graph, graph.written

    monkeypatch.setattr(times, "capture", capture)
    found = times.captured_rows(a_case("GAT", "cora"), mode)
    assert [row["variant"] for row in found] == ["swap", "PyG"]
    assert all(row["wrong"] == stale and row["captured"]["n"] == row["n"] for row in found)
    results = {"checks": [], "times": [], "captured": found, "tests": {}, "notebooks": [], "problems": []}
    assert len(page.wrong(results)) == (1 if stale else 0)  # PyG's own is said, and is no fault of gnnswap


def test_what_cannot_be_captured_is_a_line(monkeypatch):
    def capture(call):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(times, "capture", capture)
    found = times.captured_rows(a_case("GCN", "cora"), "forward")
    assert all(row["why"].endswith("stream is capturing") and row["median"] > 0 for row in found)
    assert "operation not permitted" in page.captures({"captured": found})


def test_a_run_on_a_cuda_device_has_its_tests_and_captures(monkeypatch, tmp_path):
    """The parts that a CPU leaves out, with what needs the device replaced."""

    def capture(call):
        graph = Replayed(call, stale=False)
        return graph, graph.written

    def child(command, limit_s, log):
        log.write_text("3 passed, 90 deselected in 2.00s\n")
        return 0, log.read_text()

    monkeypatch.setattr(times, "capture", capture)
    monkeypatch.setattr(parts, "child", child)
    monkeypatch.setattr(parts, "facts", lambda device: {"device": "a card", "torch": torch.__version__})
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)
    sizes, asked = {"cora": rows.TINY["cora"]}, ("tests", "captured", "notebooks")
    settings = {"date": "", "budget_s": 100, "tiny": False, "parts": asked, "sizes": sizes, "compile_backend": "eager"}
    run = parts.Run(tmp_path / "new", "cpu", sizes, ("GCN",), asked, 100, command.empty(settings))
    run.case("GCN", "cora", "float32", run.graph("cora"))  # kept, so that nothing is made on the device below
    run.device = "cuda"
    parts.execute(run)
    results, text = rows.load(run.folder), page.write_page(run.folder)
    assert not results["problems"] and [row["variant"] for row in results["captured"]] == ["swap", "PyG"] * 2
    assert "-m cuda" in text and "`: 3 passed, 90 deselected." in text and "| GCN | cora | training | PyG |" in text
    assert "- notebooks: papermill is not installed here" in text and "- kernels: not asked for" in text


# ---- statistics, graphs, bytes ---------------------------------------------------------------------------------------


def test_the_interval_of_a_median_is_one_of_order_statistics():
    assert rows.interval([1.0, 2, 3, 4, 5]) is None
    assert rows.interval([6.0, 1, 5, 2, 4, 3]) == (1, 6)
    assert rows.interval([float(n) for n in range(8)]) == (0, 7)  # without the outermost it covers 93 %
    assert rows.interval([float(n) for n in range(12)]) == (2, 9)
    assert rows.estimate([3.0, 1.0, 2.0]) == {"median": 2, "low": None, "high": None, "n": 3}


def test_geometric_means_and_gains_of_known_numbers():
    assert rows.geometric_mean([1.0, 4.0]) == pytest.approx(2)
    fast = {"rounds_ms": [1.0, 2.0, 1.0]}
    baselines = [{"rounds_ms": [4.0, 4.0, 4.0]}, {"rounds_ms": [3.0, 10.0, 5.0]}]
    assert rows.gain(fast, baselines)["median"] == 3  # of 3, 2, 4: the fastest of each round
    assert rows.gain(fast, []) is None and rows.gain({"why": "out of memory"}, baselines) is None
    assert page.mean_of([{"median": 1.0}, None, {"median": 4.0}]) == "2.00x (2 cells)"


def test_bytes_of_a_small_layer_are_those_counted_by_hand():
    size = rows.Size(nodes=2, edges=3, inputs=4, outputs=8)
    assert rows.bytes_moved("GCN", size, "forward", 4) == (2 * 4 + 2 * 8 + 3 * 8) * 4 + 2 * 3 * 8
    assert rows.bytes_moved("SAGE", size, "forward", 2) == (2 * 4 + 2 * 8 + 3 * 4) * 2 + 2 * 3 * 8
    back = 2 * 8 + 2 * 4 + 2 * 4 + 3 * 8  # the gradient of the output, x, the gradient of x, a row for each edge
    assert rows.bytes_moved("GCN", size, "training", 4) == rows.bytes_moved("GCN", size, "forward", 4) + back * 4 + 48


def test_drawn_graphs_have_their_edges_once_no_loops_and_hubs():
    size = rows.Size(400, 3000, 8, 8)
    source, target = edges = cases.draw_graph(size, "cpu")
    assert edges.shape == (2, 3000) and edges.unique(dim=1).shape == (2, 3000)
    assert not (source == target).any() and edges.min() >= 0 and edges.max() < 400
    assert torch.bincount(target).max() > 5 * 3000 / 400 > torch.bincount(source).max() / 3
    assert torch.equal(edges, cases.draw_graph(size, "cpu"))


# ---- the command -----------------------------------------------------------------------------------------------------


def test_what_does_not_fit_the_budget_is_left_out_with_a_line(tmp_path):
    assert command.main([*SHORT, "--layers", "GCN", "--budget", "0", "--out", str(tmp_path)]) == 0
    results = rows.load(tmp_path)
    assert results["checks"] == results["times"] == [] and results["finished"]
    text = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert "- GCN in float32 at cora: 0 s were left for it" in text and "- captured: not asked for" in text


def test_without_a_cuda_device_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--tiny runs all of it on a CPU"):
        command.main(["--out", str(tmp_path)])


@pytest.mark.parametrize("wrong", [["--only", "speed"], ["--layers", "GCN,GTA"], ["--sizes", ""], []])
def test_unknown_names_are_refused(wrong, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([*wrong, *(["--out", str(tmp_path)] if wrong else [])])
    assert ended.value.code == 2 and ("is not among" in capsys.readouterr().err) == bool(wrong)


def test_counts_and_failures_are_read_from_what_pytest_printed():
    text = "..F\nFAILED tests/cuda/test_a.py::test_b - assert 1 == 2\n1 failed, 2 passed, 30 deselected in 1.25s\n"
    found = machine.test_counts(text)
    assert found["counts"] == {"failed": 1, "passed": 2, "deselected": 30}
    assert found["failures"] == ["tests/cuda/test_a.py::test_b - assert 1 == 2"]
    results = {"checks": [], "times": [], "captured": [], "notebooks": [], "problems": []}
    results["tests"] = found | {"status": 1, "command": "-m pytest", "limit_s": 60.0}
    assert page.wrong(results) == ["test failed: tests/cuda/test_a.py::test_b - assert 1 == 2"]


def test_a_child_is_stopped_at_its_limit_and_what_it_printed_is_kept(tmp_path):
    began = time.monotonic()
    code = "import time; print('begun', flush=True); time.sleep(60)"
    status, text = machine.child([sys.executable, "-c", code], 2, tmp_path / "log")
    assert status is None and time.monotonic() - began < 30
    assert text.startswith("begun") and "KeyboardInterrupt" in text
    assert machine.child([sys.executable, "-c", "print('done')"], 60, tmp_path / "log") == (0, "done\n")


@pytest.mark.parametrize(("rows_off", "wrong"), [(0, False), (2, False), (3, True)])
def test_a_few_rows_of_the_gradient_of_x_may_have_another_slope(rows_off, wrong):
    exact = [torch.ones(1000, 4, dtype=torch.float64), torch.ones(1000, 4, dtype=torch.float64)]
    own = [one.float() for one in exact]
    got = [one.clone() for one in own]
    got[1][:rows_off] += 0.5
    found = checks.deviation(got, exact, own, ["output", "x"], "float32")
    assert found["wrong"] == wrong and (found["of"] != "x" or found["rows_off"] == rows_off)
    got[0][0] += 0.5  # no output may
    assert checks.deviation(got, exact, own, ["output", "x"], "float32")["wrong"]


# ---- README ---------------------------------------------------------------------------------------------------------


def test_what_the_readme_says_of_a_gpu_follows_from_the_rows():
    paragraphs = (ROOT / "README.md").read_text("utf-8").split("\n\n")
    text = next(one.replace("\n", " ") for one in paragraphs if one.startswith("**On a GPU**"))
    results = rows.load(ROOT / "docs" / "reference-runs" / "nvidia-h100-80gb-hbm3")
    facts, found = results["facts"], page.cells(results)
    assert f"{facts['device']}, torch {facts['torch'].partition('+')[0]}, Triton {facts['triton']}" in text
    arxiv = {m: [v for k, v in found.items() if (k[0], k[1], k[3]) == ("float32", "arxiv", m)] for m in rows.MODES}

    def mean(ratio, mode):
        return f"{rows.geometric_mean([ratio(one)['median'] for one in arxiv[mode]]):.2f}"

    over_pyg, over_best = ([mean(one, mode) for mode in rows.MODES] for one in (page.over_pyg, page.over_best))
    assert f"are {over_pyg[0]} times as fast as PyG forward and {over_pyg[1]} in training" in text
    assert f"are {over_best[0]} and {over_best[1]} times as fast as the best of" in text
    memory = [page.memory_ratio(arxiv[mode]).partition("x")[0] for mode in rows.MODES]
    assert f"takes {memory[0]} times less memory forward, {memory[1]} in training" in text
    small = [page.over_best(v)["median"] for k, v in found.items() if k[0] == "float32" and k[1] in ("cora", "20k")]
    gains = [one["gain"]["median"] for one in results["captured"] if one["variant"] == "swap"]
    assert f"at {min(small):.2f} to {max(small):.2f} times the best alternative's speed" in text
    assert f"{min(gains):.1f} to {max(gains):.1f} times as fast as uncaptured" in text
