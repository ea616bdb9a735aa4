"""A written module is read by Python, makes the fast model, and gives what the user's own gives: in a fresh process."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from fake_search import raced

from gnnlab.errors import GnnlabError
from gnnlab.measure.estimates import Estimate
from gnnlab.optimize import steps, written

LAYERS, MODE = "fast layers", "inference mode"
GRAPHS = {"with_edges": "symptoms"}
FACTORIES = ("gcn", "gatv2", "pna", "with_edges", "bipartite", "pooled")
COMPARE = """
import json, sys
from gnnswap import parity
from gnnswap.inputs import call
from gnnlab.workloads import models
errors = {}
for name, graph in json.loads(sys.argv[1]).items():
    own, fast = (models.build(spec, graph) for spec in (f"own_models:{name}", f"fast_{name}:make"))
    same = own.model.state_dict().keys() == fast.model.state_dict().keys()
    outs = (call(built.model.eval(), built.batch) for built in (fast, own))
    errors[name] = float(parity.error(*outs)) if same else -1
print(json.dumps(errors))
"""


def test_written_modules_of_every_kind_of_model_give_equal_outputs_in_a_fresh_process(here, tmp_path):
    plans = {}
    for name in FACTORIES:
        report = here(name, (LAYERS, MODE), GRAPHS.get(name, "karate"))
        plans[name] = report.plan
        written.write(report, tmp_path / f"fast_{name}.py")
    assert all({LAYERS, MODE} <= set(plan) for plan in plans.values()), plans
    graphs = {name: GRAPHS.get(name, "karate") for name in FACTORIES}
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPARE, json.dumps(graphs)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    errors = json.loads(done.stdout.splitlines()[-1])
    assert errors.keys() == set(FACTORIES) and all(0 <= error < 1e-4 for error in errors.values()), errors


@pytest.fixture
def report(here):
    return here("gcn")


def test_a_module_says_what_each_step_brought_on_what_machine_and_what_was_proven(report):
    text = written.module_text(report)
    ast.parse(text)
    assert max(map(len, text.splitlines())) <= 120
    for words in (f"{report.gain.value:.3g} (", "over 3 processes", "threads of torch", "no edges", "2 GCNConv", "MiB"):
        assert words in " ".join(text.split()), words
    assert text.index(steps.STEPS[LAYERS].code) < text.index(steps.STEPS[MODE].code)
    assert "times as fast within one process" in written.module_text(replace(report, whole=raced([0.5])))
    assert "not measured as a whole yet" in written.module_text(replace(report, whole=None))
    assert "before it" in text and "before it" not in written.module_text(replace(report, plan=(LAYERS,)))


def test_what_changes_results_is_written_as_a_comment(report):
    bfloat16 = replace(report.tried[1], name="bfloat16", kept=False, error=5e-3)
    text = written.module_text(replace(report, tried=(*report.tried, bfloat16)))
    assert "    # model = steps.bfloat16(model, batch)" in text and "error 5.0e-03" in text
    ast.parse(text)


def test_every_step_can_be_called_as_it_is_written():
    for step in steps.STEPS.values():
        call = ast.parse(step.code).body[0].value
        assert call.func.value.id == "steps" and callable(getattr(steps, call.func.attr))


def test_nothing_is_written_where_nothing_pays(report, tmp_path):
    with pytest.raises(GnnlabError, match="nothing of what was tried"):
        written.write(replace(report, plan=()), tmp_path / "fast.py")


def test_a_module_for_a_device_moves_the_model_and_names_the_card(here):
    report = here("gcn", (LAYERS,))
    card = {"device": "NVIDIA H100", "float32_products": "highest"}
    text = written.module_text(replace(report, device="cuda", facts={**report.facts, **card}))
    assert 'steps.user_model(original, data, options, "cuda")' in text.replace("'", '"')
    assert "Machine: NVIDIA H100, float32 products: highest;" in text
    ast.parse(text)


def test_a_gain_that_may_be_anything_is_not_given_as_a_number_and_none_is_said_to_be_none():
    assert written.gain_text(Estimate(2.0, 0.0, 132_317.0, 2)) == "too noisy to tell"
    assert written.gain_text(Estimate(2.0, 1.9, 2.1, 5)) == "2 (1.9 to 2.1)"
    assert written.gain_text(Estimate(1.0, 0.97, 1.12, 5)) == "no difference seen, 1 (0.97 to 1.12)"
    assert written.gain_text(Estimate(1.5, None, None, 2)) == "1.5, without an interval"
