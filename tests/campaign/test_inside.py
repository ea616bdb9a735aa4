"""A look inside a block: real runtimes on a small graph, and planted times whose sums and words are known."""

import itertools
from dataclasses import asdict, replace

import fake_units
import numpy as np
import pytest

from gnnlab.campaign import inside
from gnnlab.campaign.cells import Cell, CellResult, Settings
from gnnlab.campaign.inside import BETWEEN, CellProfile, Inside, look_inside, profile_here
from gnnlab.campaign.sizes import GraphSize
from gnnlab.errors import GnnlabError
from gnnlab.export.export import export
from gnnlab.lab.table import row
from gnnlab.units.unit import Batch, Operator
from gnnlab.workloads.graphsage import sage

FEATURES = 6
SUMS = {  # the operator that adds, as each runtime calls it
    "openvino:CPU": "ScatterElementsUpdate",
    "openvino-handbuilt:CPU": "EmbeddingBag",
    "onnxruntime:CPU": "ScatterND",
    "torch:CPU": "aten::scatter_add_",
    "fast:CPU": "aten::_embedding_bag",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory, one_registry):
    folder = tmp_path_factory.mktemp("models")
    for exporter in ("onnx", "openvino", "handbuilt"):
        export(sage(FEATURES), 1, 5, exporter=exporter, folder=folder)
    return str(folder)


def looked(unit, models=None, **changes):
    cell = replace(Cell("sage", FEATURES, 200, 900, 1, 5, unit), **changes)
    answer = profile_here(asdict(cell), Settings(models=models, budget_s=0.01).to_json())
    return cell, CellProfile.from_json(answer)


@pytest.mark.parametrize(("unit", "adds"), SUMS.items())
def test_operators_and_what_lies_between_are_the_call_in_every_round(models, unit, adds):
    cell, found = looked(unit, models)
    assert found.status == "measured", found.reason
    assert len(found.samples_ms) == len(found.profiled_ms) >= 6 and found.parity_error <= 1e-5
    assert any(operator.type.startswith(adds) for operator in found.parts), found.parts
    np.testing.assert_allclose(sum(found.parts.values()), found.profiled_ms)
    assert all((ms >= -0.05).all() for ms in found.parts.values())  # OpenVINO rounds each of its means
    assert sum(share.value for share in found.shares.values()) == pytest.approx(1)
    rows = Inside({cell: found}).operators()
    (call,) = Inside({cell: found}).calls().query("form == @inside.ON").to_dict("records")
    assert sum(np.mean(ms) for ms in rows["samples"]) == pytest.approx(np.mean(call["samples"]))
    assert set(rows["origin"]) == {"measured"} and set(rows["unit"]) == {"ms"} and set(rows["form"]) == {unit}


@pytest.mark.parametrize(
    ("unit", "status", "why"),
    [
        ("simulated:GPU", "unavailable", "computed from constants"),
        ("simulated:NPU", "unavailable", "does not run REDUCE_SUM"),
        ("openvino:CPU", "unavailable", "no folder of them was given"),
        ("fake_units:lies", "wrong", "differs from torch's float32 block"),
        ("fake_units:behaves", "unavailable", "has no method `profile`"),
    ],
)
def test_what_is_not_looked_into_says_why(unit, status, why, monkeypatch):
    empty = Batch(1.0, {}, {})
    monkeypatch.setattr(fake_units.Liar, "profile", lambda *block, **conditions: lambda values, calls: empty)
    cell, found = looked(unit)
    assert found.status == status and why in found.reason and not found.profiled_ms
    told = Inside({cell: found})
    (line,) = told.operators().to_dict("records")
    assert line["status"] == ("unavailable" if status == "unavailable" else "failed") and why in line["reason"]
    assert why in told.sentences()[0] and told.finding() == "No runtime tells what runs inside its blocks"
    assert told.largest().empty


def test_a_profiled_call_that_computes_something_else_is_not_timed(monkeypatch):
    def off(*_):
        return lambda values, calls: Batch(1.0, {}, {"means": values["means"] + 1})

    monkeypatch.setattr(inside, "load_profile", off)
    monkeypatch.setattr(inside, "clocked", lambda *_: pytest.fail("timed"))
    _, found = looked("torch:CPU")
    assert found.status == "wrong" and "differs from torch's float32 block" in found.reason


def test_operators_that_ran_beside_each_other_have_no_shares(monkeypatch):
    def beside(*_):
        return lambda values, calls: Batch(1.0, {Operator("a"): 0.7, Operator("b"): 0.6}, {"means": values["means"]})

    monkeypatch.setattr(inside, "load_profile", beside)
    _, found = looked("torch:CPU")
    assert found.status == "unavailable" and "take 1.30 times as long as the call" in found.reason


def test_a_profiler_that_tells_no_time_is_said(monkeypatch):
    def nothing(*_):
        return lambda values, calls: Batch(1.0, {Operator("a"): 0.0}, {"means": values["means"]})

    monkeypatch.setattr(inside, "load_profile", nothing)
    _, found = looked("torch:CPU")
    assert found.status == "unavailable" and "less than the profiler of its runtime tells apart" in found.reason


@pytest.mark.parametrize(("stalls", "left_out"), [({5}, 1), ({5, 6, 9}, 3), (set(range(1, 9)), 0)])
def test_rounds_in_which_the_machine_stalled_are_left_out_unless_most_did(monkeypatch, stalls, left_out):
    calls = itertools.count()  # the first one sets how many calls a sample has
    monkeypatch.setattr(inside, "clocked", lambda *_: (50.0 if next(calls) in stalls else 4.0, {}))
    part = Operator("a")
    off, on, operators, stalled = inside._rounds(None, lambda *_: Batch(4.0, {part: 3.0}, {}), {}, 0.0)
    assert stalled == left_out and len(off) == len(on) == len(operators[part]) == 12 - left_out
    assert left_out == 0 or set(off) == {4.0}


def test_short_blocks_are_called_several_times_and_both_in_random_order(monkeypatch):
    said = []

    def batch(values, calls):
        said.append(("on", calls))
        return Batch(2.0, {Operator("a"): 1.5} if len(said) % 2 else {}, {"means": values["means"]})

    def clocked(run, values, calls):
        said.append(("off", calls))
        return 1.0, None

    monkeypatch.setattr(inside, "load_profile", lambda *_: batch)
    monkeypatch.setattr(inside, "clocked", clocked)
    _, found = looked("torch:CPU")
    order = [which for which, calls in said[2:]]
    assert {calls for _, calls in said[2:]} == {3}  # of 1 ms each
    assert all(sorted(order[i : i + 2]) == ["off", "on"] for i in range(0, len(order), 2))
    assert {tuple(order[i : i + 2]) for i in range(0, len(order), 2)} == {("off", "on"), ("on", "off")}
    assert found.slower.value == 2.0
    ((*_, ms),) = found.operators
    assert set(ms) <= {0.0, 1.5} and len(ms) == len(found.profiled_ms)  # 0 where it did not run


def planted():
    """Two stages on two units of one runtime, one of another: an operator of 6 of 10 ms, one of 3, 1 between."""

    def of(scale, *types):
        rounds = np.array([1.0, 1.1, 0.9, 1.0, 1.05, 0.95]) * scale
        operators = tuple(
            (kind, f"node {i}", "ref", tuple(ms * rounds))
            for i, (kind, ms) in enumerate(zip(types, (6, 3), strict=True))
        )
        plain = CellResult("measured", samples_ms=tuple(8 * rounds), median_ms=8.0, ci_ms=(7.0, 9.0), std_ms=0.1)
        fields = {**vars(plain), "device": "x", "precision": "float32", "threads": 1, "notes": ()}
        return CellProfile(**fields, profiled_ms=tuple(10 * rounds), operators=operators)

    def at(stage, unit):
        return Cell("sage", FEATURES, 20, 90, stage, stage, unit)

    return Inside(
        {
            at(3, "openvino:CPU"): of(2, "Scatter", "Gather"),
            at(6, "openvino:CPU"): of(1, "MatMul", "Add"),
            at(3, "openvino-handbuilt:CPU"): of(1, "Bag", "Bag"),
            at(3, "onnxruntime:CPU"): of(0.1, "ScatterND", "Gather"),
            at(6, "onnxruntime:CPU"): of(0.2, "Gemm", "Relu"),
        }
    )


def test_the_finding_names_the_largest_operator_of_the_slowest_stage_of_each_runtime():
    assert planted().finding() == (
        "Largest part of the slowest stage: "
        "Scatter (60 % of openvino:CPU, 3 REDUCE_SUM), Gemm (60 % of onnxruntime:CPU, 6 TRANSFORM)"
    )
    third = Inside({cell: found for cell, found in planted().of.items() if cell.first == 3})
    told = "Scatter (60 % of openvino:CPU), ScatterND (60 % of onnxruntime:CPU)"
    assert third.finding() == f"Largest part of 3 REDUCE_SUM: {told}"


def test_the_finding_says_where_intervals_do_not_tell_which_is_the_largest():
    (cell, found), *_ = planted().of.items()
    (kind, name, kernel, ms), other = found.operators
    noisy = tuple(np.add(ms, [8, -8, 8, -8, 8, -8]))
    told = Inside({cell: replace(found, operators=((kind, name, kernel, noisy), other))}).finding()
    assert told == "Largest part of 3 REDUCE_SUM: Scatter or Gather (of openvino:CPU, too noisy to tell)"


def test_sentences_give_shares_what_lies_between_and_what_the_profiler_costs():
    said = planted().sentences()
    assert said[0].startswith("- 3 REDUCE_SUM on openvino:CPU: Scatter 60 % (60 to 60), Gather 30 % (30 to 30); 10 % (")
    assert said[0].endswith("16 ms a call, 1.25 (1.25 to 1.25) times as long under the profiler")
    assert "Bag 90 % (90 to 90); 10 %" in said[2]  # two nodes of one type
    lost = CellProfile("unavailable", "no profiler")
    cells = [Cell("sage", FEATURES, 20, 90, stage, stage, "torch:CPU") for stage in (3, 6)]
    assert Inside(dict.fromkeys(cells, lost)).sentences() == ["- not looked into on torch:CPU: no profiler"]


def test_the_table_for_reading_has_the_largest_first_and_what_matters():
    found = planted()
    tiny = {
        cell: replace(one, operators=(*one.operators, ("Shape", "n", "", (1e-3,) * 6)))
        for cell, one in found.of.items()
    }
    shown = Inside(tiny).largest()
    first = shown[(shown["unit"] == "openvino:CPU") & (shown["block"] == "3 REDUCE_SUM")]
    assert list(first["operator"]) == ["Scatter", "Gather", BETWEEN.type]
    assert list(first["% of the block"].round(1)) == [60, 30, 10]
    assert "Shape" not in set(first["operator"])


def test_every_line_is_a_row_of_the_table():
    for frame, keys in ((planted().calls(), ["pu"]), (planted().operators(), ["operator", "name", "kernel"])):
        seen = set()
        for line in frame.to_dict("records"):
            known = {k: v for k, v in line.items() if k not in ("samples", "stage", "size", *keys) and v is not None}
            named = {key: line[key] for key in ("size", "stage", *keys)}
            made = row(study="s", keys=named, value=float(np.mean(line["samples"])), n=6, interval="none", **known)
            seen.add(made.id)
        assert len(seen) == len(frame)


def test_blocks_are_looked_into_in_a_process_that_may_die(tmp_path):
    found = look_inside(
        models=tmp_path,
        size=GraphSize(20, 90),
        blocks=["3"],
        names=["fake_units:crashes", "torch:CPU"],
        features=FEATURES,
        budget_s=0.01,
    )
    crashed, measured = found.of.values()
    assert crashed.status == "failed" and measured.status == "measured", measured.reason
    with pytest.raises(GnnlabError, match="stages '9' are not there"):
        look_inside(models=tmp_path, size=GraphSize(20, 90), blocks=["9"], names=["torch:CPU"])
