"""The examples work as README and docs/own-*.md use them, and the pages say what the code takes."""

import doctest
import importlib
import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from gnnlab import cli
from gnnlab.inference import states
from gnnlab.lab import discovery
from gnnlab.stages import devices
from gnnlab.stages.devices import Device
from gnnlab.training import loops
from gnnlab.workloads import graph_files, graphs, graphsage, models, tables

ROOT = Path(__file__).parents[1]
DEVICE = (ROOT / "docs" / "own-device.md").read_text("utf-8")
PAGE = (ROOT / "docs" / "own-things.md").read_text("utf-8") + DEVICE
README = (ROOT / "README.md").read_text("utf-8")
USED = sorted(set(re.findall(r"examples[./]\w+(?:\.\w+|:\w+)?", PAGE + README)))
LINES = sorted({line.partition("  #")[0].strip() for line in re.findall(r"^gnnlab .*examples.*$", PAGE + README, re.M)})


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_example_is_used_and_what_is_used_is_there():
    names = {path.stem for path in (ROOT / "examples").iterdir() if path.stem != "compose"}
    assert {re.split(r"[./:]", used)[1] for used in USED} - {"compose"} == names


def test_lines_are_understood_and_their_parameters_are_those_of_the_notebook():
    for line in LINES:
        given = cli._parser().parse_args(shlex.split(line.partition(" < ")[0])[1:])
        if hasattr(given, "notebooks"):
            (notebook,) = discovery.notebooks(ROOT, given.notebooks)
            assert {name for name, _ in given.overrides} <= set(discovery.declared(notebook)), line


def test_the_model_runs_on_the_graph_and_the_page_describes_every_kind_of_graph_file():
    made = models.build("examples.my_models:make_gat", "examples/my_graph.csv")
    assert made.graph.num_nodes == 60 and "edge_weight" in made.graph
    assert made.model.eval()(**made.batch).shape == (60, 7)
    assert [suffix for suffix in graph_files.READERS if f"`{suffix}`" not in section("A graph")] == []


def test_a_graph_saved_as_the_page_says_is_read_as_it_was(tmp_path):
    """The page's own lines are run."""
    import scipy.sparse

    adjacency = np.array([[0, 2, 0], [1, 0, 0], [0, 1, 0]], dtype=np.float32)
    features, labels = np.eye(3, 2, dtype=np.float32), np.array([0, 1, 1])
    code = re.search(r"```python\n(.*?)```", section("A graph"), re.S)[1].replace(
        "my_graph.npz", str(tmp_path / "my.npz")
    )
    scope = {"scipy": scipy, "numpy": np, "adjacency": adjacency, "features": features, "labels": labels}
    exec(code, scope)
    found = graphs.load(str(tmp_path / "my.npz"))
    assert found.edge_index.tolist() == [[0, 1, 2], [1, 0, 1]] and found.edge_weight.tolist() == [2, 1, 1]
    assert np.array_equal(found.x, features) and found.y.tolist() == [0, 1, 1]


def test_the_lines_of_the_page_on_python_run_as_they_stand(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text("utf-8"), re.S)
    scope = {}
    exec("\n".join(blocks), scope)
    printed = capsys.readouterr().out
    assert "times as fast" in printed and "MFLOP" in printed and scope["out"].shape == (500, 64)


def test_the_table_can_be_trained_on_with_the_batch_of_the_page():
    line = next(line for line in LINES if line.startswith("gnnlab run 03"))
    given = dict(cli._parser().parse_args(shlex.split(line)[1:]).overrides)
    columns = {name: given[name].strip("[]").split(", ") for name in ("fields", "targets")}
    table = tables.load(given["table"], **columns)
    loops.check(*table.split(0.25, seed=0), int(given["batch_size"]))
    effects = tables.load(given["table"], fields=columns["fields"], targets=["effects"])
    assert effects.specs[0].kind == "labels" and effects.specs[0].size == 3
    for suffix in tables.READERS:
        assert f"`{suffix}`" in section("A table")


def test_states_are_answered_and_the_page_has_every_field_with_its_range_and_unit(capsys):
    assert cli.main(["infer", "--device", "cpu", "--batch", "examples/states.jsonl"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.keys() for answer in answers] == [{"line", "node_id", "node", "score"}] * 3
    fields = states.json_schema()["properties"]["nodes"]["items"]["properties"]
    rows = [
        f"| `{name}` | {field['type']} | 0 to {field['maximum']:,} | {field.get('description', '')} |".replace(
            "|  |", "| |"
        )
        for name, field in fields.items()
        if name != "node_id"
    ]
    assert [row for row in rows if row not in section("States of edge networks")] == []
    stored = json.loads((ROOT / "docs" / "state.schema.json").read_text("utf-8"))
    assert stored == json.loads(json.dumps(states.json_schema()))


def test_the_device_can_be_used_and_computes_what_the_layer_computes():
    device = devices.find("examples.my_device:make")
    assert device.probe().usable
    layer = graphsage.sage(8)
    graph = graphsage.inputs_of(graphs.load("karate"), 8)
    values = {name: tensor.numpy() for name, tensor in graph.items()}
    loaded = device.load(layer, 1, 7, None, nodes=34, edges=156, threads=1, precision="float32")
    expected = layer.block(1, 7)(*(graph[name] for name in layer.block(1, 7).reads))[0]
    np.testing.assert_allclose(loaded.run(values)[layer.result], expected.detach(), rtol=1e-5, atol=1e-6)
    loaded.close()
    assert [field.name for field in fields(Device) if f"| `{field.name}` |" not in DEVICE] == []


@pytest.mark.parametrize(
    "module",
    [
        "gnnswap.replace",
        "gnnswap.compile_ops",
        "gnnlab.measure.race",
        "gnnlab.profile.runtime",
        "gnnlab.profile.memory",
    ],
)
def test_the_examples_of_docstrings_run_as_they_stand(module):
    ran = doctest.testmod(importlib.import_module(module))
    assert ran.attempted and not ran.failed
