"""Two results side by side: the words follow the intervals, and every condition that differs is named."""

import io
import json
from dataclasses import asdict

import pytest
import run_folders
from rich.console import Console

from gnnlab import compare
from gnnlab.commands.notebooks import of_comparison
from gnnlab.errors import GnnlabError
from gnnlab.lab.table import Table, row

ENVIRONMENT = {
    "commit": "abc1234",
    "dirty": False,
    "cpu": {"model": "AMD EPYC 9R14", "cores": 2},
    "versions": {"torch": "2.13.0", "openvino": None},
    "threads": 2,
    "load": [0.1, 0.2, 0.3],
}
CONDITIONS = {"device": "CPU", "runtime": "torch", "precision": "float32", "threads": 2}


def time(value, half=0.0, **changes):
    """A measured row; without `half` its samples have no interval."""
    fields = {"study": "forward", "variant": "PyG", "origin": "measured", "statistic": "median", "unit": "ms", "n": 50}
    fields |= {"better": "lower", "value": value, "interval": "95 % confidence", **CONDITIONS}
    if half:
        fields |= {"low": value - half, "high": value + half}
    return row(**fields | changes)


def count(value, **changes):
    exact = {"origin": "counted", "statistic": "count", "interval": "exact", "n": 1, "unit": "count"}
    return time(value, **exact | {"better": "neither"} | changes)


def told(comparison):
    console = Console(width=400, record=True, file=io.StringIO())
    console.print(of_comparison(comparison))
    return console.export_text()


@pytest.fixture
def write(result_file):
    """Writes a run of rows into a folder; of several the last `at` is the newest."""

    def write(folder, *rows, name="01_profile_bottlenecks", at="1", **changes):
        known = {"parameters": {"runs": 5, "output_dir": "out"}, "environment": ENVIRONMENT, **changes}
        run_folders.put(folder, result_file(run=str(folder / at), notebook=name, **known), Table(rows), at)
        return folder

    return write


@pytest.fixture
def changes(tmp_path, write):
    return lambda a, b: compare.compare(write(tmp_path / "a", a), write(tmp_path / "b", b)).changes


def raced(ratio, half, **changes):
    ends = {"ratio_low": ratio - half, "ratio_high": ratio + half} if half else {}
    return time(10, 0.1, **{"variant": "gnnlab", "baseline": "PyG", "ratio": ratio, **ends} | changes)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (time(10, 0.1), time(8, 0.1), ["better"]),
        (time(10, 0.1), time(12, 0.1), ["worse"]),
        (time(10, 1.5), time(11, 1.5), ["no difference seen"]),
        (count(10), count(10), ["no difference seen"]),
        (count(10), count(11), ["higher"]),  # both exact: any change is one
        (count(0), count(3), ["higher"]),  # without a ratio
        (time(0, 1), time(1, 1), ["no difference seen"]),
        (time(10, 0.1, better="higher"), time(12, 0.1, better="higher"), ["better"]),
        (time(10, 0.1, better="higher"), time(8, 0.1), ["lower"]),  # the two do not agree on which way is better
        (time(10, 0.1), time(10, 0.1, unit="s"), ["not comparable"]),
        (time(10, 0.1), time(10, 0.1, statistic="mean"), ["not comparable"]),
        (time(10, 0.1), time(20, n=3), ["unknown: B has no 95 % interval"]),
        (time(10, 1, interval="90 % prediction"), time(90, 1), ["unknown: A has no 95 % interval"]),
        # of a race the ratio is compared, too, and more is better
        (raced(2, 0.1), raced(3, 0.1), ["no difference seen", "better"]),
        (raced(2, 0.1), raced(2.05, 0.1), ["no difference seen", "no difference seen"]),
        (raced(2, 0.1), raced(3, 0.1, baseline="torch"), ["no difference seen", "only in A", "only in B"]),
        (raced(2, 0.1), raced(3, 0), ["no difference seen", "unknown: B has no 95 % interval"]),
    ],
)
def test_the_word_follows_the_interval_and_the_direction(changes, a, b, words):
    assert [change["word"] for change in changes(a, b)] == words


def test_a_baseline_timed_again_tells_how_fast_the_machine_was_and_is_no_gain(tmp_path, write):
    def side(*times):
        return [time(ms, 0.01, variant="A/A", keys={"size": n}) for n, ms in enumerate(times)] + [time(5, 0.01)]

    compared = compare.compare(write(tmp_path / "a", *side(10, 20, 30)), write(tmp_path / "b", *side(11, 24, 30)))
    assert [change["word"] for change in compared.changes] == ["higher", "higher", *["no difference seen"] * 2]
    assert "3 races took 1.1 times as long in B (median; half of them 1.05 to 1.15)" in compared.machine
    assert compared.machine in told(compared)
    assert not compare.compare(write(tmp_path / "c", time(1, 0.1)), write(tmp_path / "d", time(1, 0.1))).machine


# ---- several runs, conditions, and what is on one side only


def test_runs_of_a_folder_are_pooled_and_what_differs_between_them_is_in_the_interval(tmp_path, write):
    for number, (a, b) in enumerate(((10, 10.3), (10.6, 9.7), (9.5, 10.8))):
        folders = (write(tmp_path / side, time(value, 0.01), at=str(number)) for side, value in (("a", a), ("b", b)))
        (change,) = compare.compare(*folders).changes
        words = ("worse", "no difference seen", "no difference seen")  # of one, two and three runs a side
        assert (change["word"], change["runs"]) == (words[number], [number + 1, number + 1])
    assert change["a"] == pytest.approx((10 * 10.6 * 9.5) ** (1 / 3))


def test_machine_versions_parameters_and_commit_that_differ_are_named(tmp_path, write):
    a = write(tmp_path / "a")
    other = ENVIRONMENT | {
        "commit": "def5678",
        "cpu": {"model": "Core Ultra 7", "cores": 2},
        "versions": {"torch": "2.13.0", "openvino": "2026.4"},
        "load": [9, 9, 9],
    }
    b = write(tmp_path / "b", environment=other, parameters={"runs": 9, "output_dir": "elsewhere"})
    write(b, name="02_optimize_gnn")
    assert compare.compare(a, b).differences == [
        "only in B: 02_optimize_gnn",
        "commit: abc1234 | def5678",
        "parameter.runs: 5 | 9",
        "cpu.model: AMD EPYC 9R14 | Core Ultra 7",
        "versions.openvino: None | 2026.4",
    ]


def test_a_change_has_its_ratio_and_the_conditions_that_differ(changes):
    other = time(8, 0.1, origin="predicted", device="CUDA H100", precision="bfloat16", threads=0)
    (change,) = changes(time(10, 0.1), other)
    note = "origin: measured | predicted; device: CPU | CUDA H100; precision: float32 | bfloat16; threads: 2 | 0"
    assert change["note"] == note and change["change"] == pytest.approx(0.8)
    assert 0.78 < change["low"] < 0.8 < change["high"] < 0.82


def test_rows_of_one_side_only_are_listed_and_why(tmp_path, write):
    absent = row(study="cuda", variant="PyG", status="unavailable", reason="no CUDA", origin="measured", unit="ms",
                 better="lower", **CONDITIONS)  # fmt: skip
    a = write(tmp_path / "a", time(1, 0.1), time(1, 0.1, study="gone"), time(1, 0.1, study="cuda"))
    b = write(tmp_path / "b", time(1, 0.1), time(1, 0.1, study="new", keys={"size": 3}), absent)
    lines = [[c["study"], c["keys"], c["word"], c["note"], c["a"], c["b"]] for c in compare.compare(a, b).changes]
    assert lines == [
        ["forward", "", compare.SAME, "", 1, 1],
        ["gone", "", "only in A", "", 1, None],
        ["cuda", "", "only in A", "no CUDA", 1, None],
        ["new", "size 3", "only in B", "", None, 1],
    ]


def test_a_folder_without_a_readable_result_is_one_line(tmp_path, write):
    run = tmp_path / "other/01_x/1"
    run.mkdir(parents=True)
    for content, part in (("", "holds no results"), ("{", "is not a result file")):
        (run / "result.json").write_text(content) if content else None
        with pytest.raises(GnnlabError, match=part):
            compare.compare(tmp_path / "other", write(tmp_path / "good", time(1)))


def test_the_terminal_says_it_all_whatever_names_hold(tmp_path, write):
    parameters = count(169856, study="parameters")
    odd = {"study": "[red]x", "variant": "[/b]"}
    a = write(tmp_path / "a", time(10, 0.1), parameters, time(1, 0.1, **odd, origin="simulated"))
    b = write(tmp_path / "b", time(8, 0.1), parameters, time(2, 0.1, **odd), params_set="full")
    comparison = compare.compare(a, b)
    json.dumps(asdict(comparison), allow_nan=False)
    text = told(comparison)
    assert text.count("169,856") == 2 and "parameter set: quick | full" in text
    assert "01 forward: PyG" in text and "better 1, no difference seen 1, worse 1" in text
    assert "[red]x: [/b]" in text and "origin: simulated | measured" in text and "not interleaved" in text
