"""The glue of notebook 02 on planted truth: means, intervals, conditions put back, verdicts that follow the table."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from gnnlab.kernels.errors import OptimizeError
from gnnlab.optimize import study, study_claims, study_reading
from gnnlab.optimize import study_cases as cases
from gnnlab.optimize.study import (
    BASELINE,
    CONTROL,
    SAME,
    Case,
    Conditions,
    Gain,
    combinations,
    geometric_mean,
    races,
    relaxed,
    rounds_of,
    set_conditions,
    shown,
    under_conditions,
)
from gnnlab.profiling.parity import ParityError
from gnnlab.profiling.roofline import Ceilings

CATALOGUE = {
    "goal.sage_layer": SimpleNamespace(claimed=(2.5, None)),
    "gat.expand": SimpleNamespace(claimed=(1.05, 1.11)),
}


@pytest.fixture(autouse=True)
def conditions():
    """Threads and precision as they were, whatever a test sets."""
    before = Conditions.now()
    yield before
    before.set()


@pytest.fixture
def options(conditions):
    return {"budget_s": 0.01, "installed": conditions, "ours": conditions}


def planted(ratio, n=60, noise=0.05, seed=0):
    """Rounds of a form that is `ratio` times as fast, under noise that both share and noise of their own."""
    random = np.random.default_rng(seed)
    machine = np.exp(random.normal(0, 0.5, n))
    own = np.exp(random.normal(0, noise, (n, 2)))
    return np.column_stack([ratio * machine, machine]) * own


def table(*rounds, form="fast"):
    """A table of races with the planted rounds, a size each."""
    rows = [
        {
            "form": form,
            "size": i,
            "rounds": r,
            "same_rounds": r,
            "parity_error": 1e-7,
            "conditions": "1 thread, highest",
            "under": Conditions(1, "highest"),
            "ratio": np.median(r[:, 0] / r[:, 1]),
        }
        for i, r in enumerate(rounds)
    ]
    return pd.DataFrame(rows)


def test_the_geometric_mean_of_planted_ratios_lies_in_its_interval():
    gain = geometric_mean([planted(2.0, seed=1), planted(8.0, seed=2)])
    assert gain.ci[0] < 4 < gain.ci[1] and gain.ci[1] / gain.ci[0] < 1.1
    assert (gain.n, gain.sizes) == (60, 2)


def test_nineteen_of_twenty_intervals_hold_the_truth():
    held = [
        low <= 3 <= high
        for seed in range(200)
        for low, high in [geometric_mean([planted(3.0, n=8, seed=3 * seed + i) for i in range(3)]).ci]
    ]
    assert np.mean(held) >= 0.93


def test_throughput_is_the_ratio_of_mean_times():
    rounds = np.array([[2.0, 1.0]] * 9 + [[2.0, 11.0]])  # one slow call in ten
    assert geometric_mean([rounds]).value == pytest.approx(2)
    assert geometric_mean([rounds], of="mean").value == pytest.approx(1)


@pytest.mark.parametrize(("rounds", "of"), [([], "median"), ([planted(1.0)], "mode")])
def test_a_mean_of_nothing_or_of_something_unknown_is_refused(rounds, of):
    with pytest.raises(OptimizeError, match="geometric_mean needs rounds"):
        geometric_mean(rounds, of=of)


def test_conditions_are_put_back_also_after_an_error(conditions):
    other = Conditions(1, "medium")
    with pytest.raises(RuntimeError), other.held():
        assert Conditions.now() == other
        raise RuntimeError
    assert Conditions.now() == conditions
    assert set_conditions(1, "high") == (conditions, Conditions(1, "high")) and Conditions.now().precision == "high"
    assert set_conditions(0, "highest")[1].threads == 1


def test_each_side_runs_under_its_own_conditions(conditions):
    seen = {"baseline": set(), "fast": set()}

    def form(name):
        def run():
            seen[name].add(torch.get_float32_matmul_precision())
            return torch.ones(2)

        return run

    ours = Conditions(conditions.threads, "medium")
    ours.set()
    case = Case({"size": "1/1"}, form("baseline"), {"fast": form("fast")})
    found = races([case], budget_s=0.01, installed=conditions, ours=ours)
    assert seen == {"baseline": {conditions.precision, "medium"}, "fast": {"medium"}}
    assert list(found["form"]) == [BASELINE, CONTROL, SAME, "fast"]
    fast, same = rounds_of(found, "fast")[0], rounds_of(found, "fast", same=True)[0]
    assert np.array_equal(fast[:, 1], same[:, 1]) and not np.array_equal(fast[:, 0], same[:, 0])
    assert Conditions.now() == ours


class Product:
    """A form whose result, and the time that it is said to take, follow the precision of products."""

    def __init__(self, error, seconds):
        self.error, self.seconds = error, seconds

    def __call__(self):
        precision = torch.get_float32_matmul_precision()
        self.took = self.seconds.get(precision, 0.02)
        return torch.tensor([1.0, 1 + self.error.get(precision, 0.0)])

    def race(self, baseline, candidates, **_):
        """As `timing.race`, by the times that are said, so that it does not depend on the machine."""
        baseline()
        expected, found = self.took, {}
        for name, form in candidates.items():
            form()
            ratio = expected / self.took
            found[name] = SimpleNamespace(ratio=ratio, ci=(0.9 * ratio, 1.1 * ratio))
        return found


@pytest.mark.parametrize(
    ("error", "seconds", "expected"),
    [
        ({}, {"medium": 0.001}, "medium"),
        ({"medium": 1e-3}, {"medium": 0.001}, "highest"),
        ({"medium": 1e-3}, {"medium": 0.001, "high": 0.002}, "high"),
        ({}, {"high": 0.1, "medium": 0.1}, "highest"),
    ],
    ids=["faster and exact", "faster and wrong", "the exact one of two", "slower"],
)
def test_products_are_relaxed_only_where_that_is_faster_and_exact(conditions, monkeypatch, error, seconds, expected):
    ours, product = Conditions(conditions.threads, "highest"), Product(error, seconds)
    monkeypatch.setattr(study, "race", product.race)
    case = Case({"size": "1/1"}, lambda: torch.ones(2), {"fast": product})
    assert relaxed(case, ours, budget_s=0.3) == Conditions(ours.threads, expected)
    assert Conditions.now() == conditions


def test_the_table_says_under_what_each_size_ran(conditions, monkeypatch):
    exact = Conditions(conditions.threads, "highest")
    case = Case({"size": "1/1"}, lambda: torch.ones(2), {"fast": lambda: torch.ones(2)})
    options = {"budget_s": 0.01, "installed": exact, "ours": exact, "control": False}
    monkeypatch.setattr(study, "relaxed", lambda case, ours, **_: Conditions(ours.threads, "medium"))
    found = races([case], relax=True, **options)
    assert study_reading.under(found, "fast") == str(Conditions(exact.threads, "medium"))
    text = study_reading.under(pd.concat([found, races([case], **options)], ignore_index=True), "fast")
    assert "medium at 1 of 2 sizes" in text and "highest at 1 of 2 sizes" in text


def test_a_form_that_does_not_run_is_not_relaxed(conditions):
    def missing():
        raise NotImplementedError("no kernel")

    ours = Conditions(conditions.threads, "highest")
    assert relaxed(Case({}, lambda: 1.0, {"absent": missing}), ours, budget_s=0.01) == ours


def test_both_sides_conditions_are_said():
    line = study_reading.conditions_line(Conditions(2, "highest"), Conditions(1, "highest"), "auto")
    assert "installed (2 threads, highest)" in line and "relaxed" in line


def test_under_the_same_conditions_both_figures_are_one(options):
    found = races([Case({}, lambda: 1.0, {"fast": lambda: 1.0})], **options).set_index("form").loc["fast"]
    assert (found["ratio"], found["ci_low"], found["ci_high"]) == (
        found["same_ratio"],
        found["same_low"],
        found["same_high"],
    )


def test_a_form_that_does_not_run_is_named_and_one_that_differs_is_not_timed(options):
    def missing():
        raise NotImplementedError("no kernel\nfor this")

    found = races([Case({}, lambda: 1.0, {"fast": lambda: 1.0, "absent": missing})], **options)
    absent = found[found["form"] == "absent"].iloc[0]
    assert absent["notes"] == "does not run here: no kernel" and np.isnan(absent["ratio"])
    assert rounds_of(found, "absent") == [] and "absent does not run here" in study_reading.forms(found)
    with pytest.raises(ParityError, match="wrong"):
        races([Case({}, lambda: 1.0, {"wrong": lambda: 1.1})], **options)
    races([Case({}, lambda: 1.0, {"rough": lambda: 1.01}, {"rough": 0.02})], **options)


def test_every_combination_of_conditions_has_a_row(conditions):
    chosen = combinations(Conditions(2, "highest"))
    assert [str(c) for c in chosen] == ["1 thread, highest", "2 threads, highest", "2 threads, medium"]
    chosen = [chosen[0], Conditions(1, "medium")]
    case = Case({}, lambda: torch.ones(2), {"fast": lambda: torch.ones(2)})
    found = under_conditions({"layer": case}, chosen, installed=conditions, budget_s=0.01)
    assert list(found["conditions"]) == ["1 thread, highest", "1 thread, medium"]
    assert (found["parity_error"] == 0).all() and Conditions.now() == conditions
    assert "PyG alone is fastest with 1 thread" in study_reading.conditions(found)
    assert list(study_reading.conditions_table(found)["relative error"]) == ["0.0e+00"] * 2


def test_sizes_are_read_or_refused_in_one_line():
    assert cases.sizes(["58/776", "1000/10000"]) == [(58, 776), (1000, 10000)]
    for text in ("1000", "1000/-1", "a/b", "1/2/3", "0/1"):
        with pytest.raises(OptimizeError, match=r"write nodes/edges, as in 1000/10000"):
            cases.sizes([text])


@pytest.mark.parametrize(
    "case",
    [
        lambda: cases.aggregation(30, 90, 16),
        lambda: cases.gat(30, 90),
        lambda: cases.gat(58, 776),
        lambda: cases.crossover([4])[0],
        lambda: cases.sage(30, 90, 16),
        lambda: cases.transformer(1, 16, 2, 32, nodes=20, edges=60),
        lambda: cases.encoder(["eager"]),
        lambda: cases.swapped("", "random:nodes=20,edges=60,features=4")[1],
    ],
)
def test_every_form_of_every_case_agrees_with_its_baseline(case, options):
    made = case()
    found = races([made], control=False, **options)
    assert list(found["form"]) == [BASELINE, *made.forms] and found["ratio"].notna().all()
    assert "rounds" not in shown(found)


def test_the_graph_of_the_study_is_the_symptom_graph():
    assert cases.graph(58, 776, 4).edge_index.shape == (2, 776)
    assert torch.equal(cases.graph(50, 200, 4).x, cases.graph(50, 200, 4).x)


def test_the_least_traffic_of_a_sum_counts_only_rows_that_are_read():
    assert study_reading.must_move_bytes(nodes=3, edges=4, features=5, sources=2) == 4 * (10 + 15 + 8 + 4)


def roof(last_cache):
    sums = table(planted(2.0), planted(2.0), form="bag").assign(
        nodes=[10, 1000], edges=[20, 2000], features=8, sources=[5, 900], ms=1e-3, ms_low=9e-4, ms_high=1.1e-3
    )
    return study_reading.roofed(sums, Ceilings([(2**15, 10.0), (2**28, 10.0)], 1.0, "float32", 1, "cpu"), last_cache)


def test_the_share_of_the_roofline_is_that_of_the_sizes_beyond_the_last_cache():
    found = roof(10_000)
    moved = study_reading.must_move_bytes(1000, 2000, 8, 900)
    assert list(found["leaves_cache"]) == [False, True]
    assert found["reached"].iloc[1] == pytest.approx(moved / 10e9 / 1e-6)
    rows, where = study_reading.beyond_cache(found, "bag")
    assert list(rows["size"]) == [1] and "leave the last cache" in where
    for unknown in (None, 10**9):
        rows, where = study_reading.beyond_cache(roof(unknown), "bag")
        assert list(rows["size"]) == [1] and "no size is known to leave" in where
    shares = study_reading.roof_table(found)
    assert list(shares.index) == [0, 1] and shares["bag"].iloc[1] == pytest.approx(found["reached"].iloc[1], abs=1e-3)
    claim = study_claims.roof_claim(found)
    assert claim["measured"] == pytest.approx(
        np.median(found["bound_ms"].iloc[1] / found["rounds"].iloc[1][:, 1]), rel=0.01
    )


def test_a_missed_goal_says_by_how_much_and_what_holds_it():
    goal = ("goal.sage_layer", table(planted(2.0)), "fast")
    held = {"operator": "aten::mm", "share": 0.8, "ci": (0.7, 0.9), "sentence": "mm takes 80 %"}
    made = {"goal.sage_layer": lambda: partial(torch.mm, torch.ones(64, 64), torch.ones(64, 64))}
    row = study_claims.goal(*goal, CATALOGUE, {"goal.sage_layer": held}, {"goal.sage_layer": "a note"})
    assert (
        row["why"].startswith("missed by 19%: 2.02 of 2.5")
        and "mm takes 80 %" in row["why"]
        and row["why"].endswith("a note")
    )
    assert f"{row['measured'] / 0.8:.3g}" in row["why"]
    spent = study_claims.spent([goal], made, CATALOGUE)
    assert spent["goal.sage_layer"]["operator"] == "aten::mm"
    reached = ("goal.sage_layer", table(planted(3.0)), "fast")
    assert study_claims.spent([reached], made, CATALOGUE) == {}
    assert study_claims.goal(*reached, CATALOGUE)["why"].startswith("met: ")


def test_fresh_memory_shows_as_page_faults():
    pytest.importorskip("resource")
    kept = np.ones(8)
    assert study_claims.page_faults(lambda: kept.sum()) < 30
    assert (
        study_claims.page_faults(lambda: np.ones(2**24).sum()) > 30
    )  # 128 MiB, in pages of 2 MiB where there are such


def test_a_goal_within_the_interval_is_not_said_to_be_missed():
    row = study_claims.goal("goal.sage_layer", table(planted(2.4, n=8, noise=0.3)), "fast", CATALOGUE)
    assert row["ci"][0] < 2.5 < row["ci"][1] and row["why"].startswith("missed, though the interval reaches the goal: ")


def test_a_goal_whose_form_does_not_run_is_untestable_with_the_reason():
    rows = pd.DataFrame([{"form": "fast", "rounds": np.nan, "same_rounds": np.nan, "notes": "does not run here: x"}])
    row = study_claims.goal("goal.sage_layer", rows, "fast", CATALOGUE)
    assert row["measured"] is None and "does not run here: x" in row["why"]


def climbed(**ratios):
    rows = [
        {"rung": rung.replace("_", " ").replace("A A", "A/A"), "batch": batch, "rounds": planted(ratio, seed=batch)}
        for rung, ratio in ratios.items()
        for batch in (1, 8)
    ]
    return pd.DataFrame(rows)


def test_the_ladder_is_summed_up_and_judged_on_the_right_device():
    summary = study_reading.ladder_summary(climbed(A_A=1.0, cached_ids=1.0, expand=1.08, all_together=1.2), CATALOGUE)
    assert list(summary["rung"]) == ["A/A", "cached ids", "expand", "all together", "all together, throughput"]
    expand = summary.set_index("rung").loc["expand"]
    assert (expand["claimed_low"], expand["claimed_high"]) == (1.05, 1.11) and expand["ci_low"] < 1.08 < expand[
        "ci_high"
    ]
    on_cpu = {row["id"]: row for row in study_claims.ladder_claims(summary, {"compile": "no compiler"})}
    assert on_cpu["gat.optimized"]["measured"] == pytest.approx(1.2, rel=0.05)
    assert on_cpu["gat.compile"]["measured"] is None and "no compiler" in on_cpu["gat.compile"]["why"]
    assert on_cpu["gat.optimized_cuda"]["measured"] is None and "CUDA" in on_cpu["gat.optimized_cuda"]["why"]
    on_cuda = {row["id"]: row for row in study_claims.ladder_claims(summary, {}, "cuda")}
    assert on_cuda["gat.optimized_cuda"]["measured"] == on_cpu["gat.optimized"]["measured"]
    assert on_cuda["gat.optimized"]["measured"] is None and len(on_cuda) == len(on_cpu) == 7


def test_the_title_of_the_ladder_claims_no_gain_that_the_interval_does_not_show():
    for ratio, words in ((1.2, "1.2"), (1.0, "no difference seen")):
        summary = study_reading.ladder_summary(climbed(all_together=ratio), CATALOGUE)
        assert words in study_reading.ladder_title(summary)
    assert "that run here" in study_reading.ladder_title(study_reading.ladder_summary(climbed(expand=1.0), CATALOGUE))


def test_expand_is_judged_on_batches_alone():
    rows = climbed(expand=1.0)
    rows.at[1, "rounds"] = planted(2.0)
    (row,) = study_reading.ladder_summary(rows, CATALOGUE).to_dict("records")
    assert row["ci_low"] < 2 < row["ci_high"]


def test_titles_follow_the_numbers():
    rows = [
        {"nodes": n, "form": form, "ms_low": ms * 0.9, "ms_high": ms * 1.1}
        for n in (16, 64, 256)
        for form, ms in (("dense", n**2), ("bag", 64.0 * n))
    ]
    assert (
        study_reading.crossover_title(pd.DataFrame(rows)) == "The dense form is faster up to 16 nodes, bags from 256 on"
    )
    both = pd.concat([table(planted(2.0)), table(planted(3.0), form="bag")], ignore_index=True)
    assert study_reading.fastest(both, "Sum").startswith("Sum: bag is ") and study_reading.best_computed(both) == "bag"


def test_compile_costs_are_told_with_what_came_from_the_cache():
    costs = {"rung": "compile", "seconds": 20.0, "graphs": 6, "graph_breaks": 2, "cache_hits": 4, "shared": False}
    text = study_reading.compile_costs(pd.DataFrame([costs | {"paid_after": 1e5}, costs | {"paid_after": np.nan}]))
    assert "20.0 s, 6 graphs, 4 of them from the cache on disk" in text and "paid after 100,000 calls" in text
    assert "nothing says that it pays" in text


def test_bf16_is_noted_where_it_is_emulated():
    assert "emulated" in study_reading.bf16_note(["avx2", "fma"])
    assert study_reading.bf16_note(["avx2", "avx512_bf16"]) == study_reading.bf16_note([], "cuda") == ""


def test_every_row_reaches_the_ledger():
    got = []
    assert study_claims.record(lambda **row: got.append(row["id"]), [{"id": "a"}, {"id": "b"}]) == 2
    assert got == ["a", "b"]


def test_a_gain_reads_as_one():
    assert study_reading.gain_text(Gain(2.0, (1.5, 2.5), 9, 1)) == "2 times as fast (1.5 to 2.5)"
