"""Two runs side by side: the words follow the intervals, and every condition that differs is named."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gnnlab.lab import compare, results
from gnnlab.lab.results import Quantity, ResultFile

ENVIRONMENT = {
    "commit": "abc1234",
    "dirty": False,
    "host": "bench",
    "cpu": {"model": "AMD EPYC 9R14", "cores": 2},
    "versions": {"torch": "2.13.0", "openvino": None},
    "threads": 2,
    "load": [0.1, 0.2, 0.3],
}


def time(value: float, half: float = 0.0, **changes: object) -> Quantity:
    ci = (value - half, value + half) if half else None
    return Quantity(**{"value": value, "unit": "ms", "ci": ci, "n": 50, "better": "lower"} | changes)


def write(folder: Path, metrics: dict[str, Quantity], name: str = "01_profile_bottlenecks", **changes: object) -> Path:
    content = {
        "notebook": name,
        "params_set": "quick",
        "status": "passed",
        "parameters": {"runs": 5, "output_dir": str(folder)},
        "environment": ENVIRONMENT,
        "metrics": metrics,
        "started": "2026-11-20T16:40:00+00:00",
        "seconds": 41.2,
    }
    results.write(folder / f"{name}.json", ResultFile.model_validate(content | changes))
    return folder


def change(tmp_path: Path, a: Quantity, b: Quantity) -> compare.Change:
    found = compare.compare(write(tmp_path / "a", {"m": a}), write(tmp_path / "b", {"m": b}))
    assert len(found.changes) == 1
    return found.changes[0]


def printed(comparison: compare.Comparison) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(compare.render(comparison))
    return console.export_text()


@pytest.mark.parametrize(
    ("a", "b", "word"),
    [
        (time(10, 0.1), time(8, 0.1), "better"),
        (time(10, 0.1), time(12, 0.1), "worse"),
        (time(10, 1.5), time(11, 1.5), "no difference seen"),
        (time(10), time(10), "no difference seen"),
        (time(10), time(10.1), "worse"),  # both exact: any change is one
        (time(10, 0.1, better="higher"), time(12, 0.1, better="higher"), "better"),
        (time(10, 0.1, better="higher"), time(8, 0.1, better="higher"), "worse"),
        (time(10, 0.1, better="neither"), time(12, 0.1, better="neither"), "higher"),
        (time(10, 0.1, better="neither"), time(8, 0.1, better="neither"), "lower"),
        (time(10, 0.1, better="higher"), time(8, 0.1), "lower"),  # the runs do not agree on which way is better
        (time(10, 0.1), time(10, 0.1, unit="s"), "not comparable because units differ"),
    ],
)
def test_the_word_follows_the_interval_and_the_direction(tmp_path: Path, a: Quantity, b: Quantity, word: str) -> None:
    assert change(tmp_path, a, b).word == word


def test_of_a_single_sample_no_change_is_told(tmp_path: Path) -> None:
    found = change(tmp_path, time(10, ci=(10, 10), n=1), time(20, 0.1))
    assert (found.change, found.ci, found.word) == (2.0, None, "unknown: a single sample has no interval")


def test_the_interval_of_a_ratio_adds_the_half_widths_of_the_logarithms_as_squares(tmp_path: Path) -> None:
    a = time(10, ci=(9.0, 12.0))
    b = time(20, ci=(16.0, 25.0))
    found = change(tmp_path, a, b)
    assert (found.scale, found.change) == ("ratio", 2.0)
    low = 2 * math.exp(-math.hypot(math.log(20 / 16), math.log(12 / 10)))
    high = 2 * math.exp(math.hypot(math.log(25 / 20), math.log(10 / 9)))
    assert found.ci == pytest.approx((low, high))
    assert 16 / 12 < low < 2 < high < 25 / 9  # narrower than the quotient of the ends


def test_values_at_or_below_zero_are_compared_by_their_difference(tmp_path: Path) -> None:
    found = change(tmp_path, time(0.0), time(3.0, 0.5))
    assert (found.scale, found.change, found.ci) == ("difference", 3.0, (2.5, 3.5))
    reaches = change(tmp_path / "more", time(1.0, 2.0), time(2.0, 0.1))
    assert (reaches.scale, reaches.word) == ("difference", "no difference seen")


positive = st.floats(0.001, 1000)


@given(a=positive, b=positive, spread_a=st.floats(1, 2), spread_b=st.floats(1, 2))
def test_swapping_the_runs_inverts_ratio_and_interval(a: float, b: float, spread_a: float, spread_b: float) -> None:
    one = time(a, ci=(a / spread_a, a * spread_a))
    other = time(b, ci=(b / spread_b, b * spread_b))
    there, back = compare._change("01", "m", one, other), compare._change("01", "m", other, one)
    assert there.ci[0] <= there.change * (1 + 1e-12) and there.change <= there.ci[1] * (1 + 1e-12)
    assert there.ci == pytest.approx((1 / back.ci[1], 1 / back.ci[0]))
    assert (there.word == "no difference seen") == (back.word == "no difference seen")


def test_the_header_names_machine_versions_parameters_and_commit_that_differ(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {})
    other = ENVIRONMENT | {
        "commit": "def5678",
        "dirty": True,
        "host": "laptop",
        "cpu": {"model": "Core Ultra 7", "cores": 16},
        "versions": {"torch": "2.13.0", "openvino": "2026.4"},
        "load": [9, 9, 9],
    }
    b = write(tmp_path / "b", {}, environment=other, parameters={"runs": 9, "output_dir": "elsewhere"})
    assert compare.compare(a, b).differences == [
        "host: bench | laptop",
        "machine: AMD EPYC 9R14, 2 cores | Core Ultra 7, 16 cores",
        "commit: abc1234 | def5678",
        "uncommitted changes: False | True",
        "openvino: not there | 2026.4",
        "01_profile_bottlenecks parameter runs: 5 | 9",
    ]


def test_metrics_and_notebooks_of_one_run_only_are_listed(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"both": time(1), "gone": time(1)})
    b = write(tmp_path / "b", {"both": time(1), "new": time(1)})
    write(b, {"other": time(1)}, name="02_optimize_gnn")
    found = compare.compare(a, b)
    assert found.only_a == ["01_profile_bottlenecks gone"]
    assert found.only_b == ["01_profile_bottlenecks new", "02_optimize_gnn other"]
    assert found.differences == ["02_optimize_gnn: only in B"]


def test_a_damaged_file_is_left_out_with_a_line_and_failed_runs_are_not_read(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"m": time(1)})
    b = write(tmp_path / "b", {"m": time(1)})
    (b / "02_optimize_gnn.json").write_text("{")
    (b / "03_x.failed.json").write_text("{")
    found = compare.compare(a, b)
    assert len(found.changes) == 1 and len(found.problems) == 1
    assert "02_optimize_gnn.json is not a result file" in found.problems[0]


def test_two_files_are_compared_whatever_their_names(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"m": time(1)}) / "01_profile_bottlenecks.json"
    b = write(tmp_path / "b", {"m": time(2)}, name="02_optimize_gnn") / "02_optimize_gnn.json"
    assert [c.word for c in compare.compare(a, b).changes] == ["worse"]


def test_what_cannot_be_compared_is_one_clear_line(tmp_path: Path) -> None:
    good = write(tmp_path / "good", {"m": time(1)})
    with pytest.raises(compare.CompareError, match="no folder or result file"):
        compare.compare(good, tmp_path / "nowhere")
    with pytest.raises(compare.CompareError, match="holds no results"):
        compare.compare(tmp_path, good)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "01_x.json").write_text("{")
    with pytest.raises(compare.CompareError, match="is not a result file"):
        compare.compare(damaged, good)


def test_the_json_holds_everything_and_the_terminal_says_it(tmp_path: Path) -> None:
    count = Quantity(value=169856, unit="count")
    a = write(
        tmp_path / "a",
        {"forward": time(10, 0.1), "parameters": count, "odd": time(1), "[red]x": time(1, origin="simulated")},
    )
    b = write(
        tmp_path / "b",
        {"forward": time(8, 0.1), "parameters": count, "odd": time(1, unit="s"), "[red]x": time(2)},
        params_set="full",
    )
    found = compare.compare(a, b)
    data = json.loads(found.to_json())
    assert [c["word"] for c in data["changes"]] == [
        "better",
        "no difference seen",
        "not comparable because units differ",
        "worse",
    ]
    text = printed(found)
    assert text.count("169,856") == 2
    assert "forward" in text and "0.8" in text and "better" in text
    assert "parameter set: quick | full" in text
    assert "[red]x" in text and "A is simulated, B is measured" in text
    assert "not interleaved" in text and "not interleaved" in data["caution"]


def test_equal_conditions_are_said_to_be_equal(tmp_path: Path) -> None:
    text = printed(compare.compare(write(tmp_path / "a", {}), write(tmp_path / "b", {})))
    assert "Machine, versions, parameters and commit are the same." in text
    assert "No metric is in both." in text
