"""Files that lie around are changed: what is read back is what was written, or it is not believed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from planted_campaign import TRUTH, leave
from small_site import judged
from table_rows import put

from gnnlab.campaign import checkpoints
from gnnlab.campaign.checkpoints import LOST, Journal
from gnnlab.errors import GnnlabError
from gnnlab.export.artefacts import Artefact, Check, ModelStore, load_artefacts
from gnnlab.files import Store, read_lines
from gnnlab.lab import compare, outputs, results
from gnnlab.lab.ledger import Ledger
from gnnlab.lab.table import Table
from gnnlab.planning import store as plan_store
from gnnlab.planning.calibration import Calibration, Stream
from gnnlab.prediction import tables
from gnnlab.prediction.bandwidth import COMPARED, BandwidthFindings
from gnnlab.prediction.measured import measured_cells
from gnnlab.prediction.planted_truth import sweep
from gnnlab.prediction.transfer import CopyCurve, MeasuredTransfers
from gnnlab.training import checkpoints as training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Target:
    """A file, how it is read by what uses it, and whether what was read may be believed."""

    path: Path
    read: Any
    fits: Any = lambda found, whole: found == whole


def of_journal(folder, result_file):
    path = folder / "journal.jsonl"
    with Journal(path, "c") as written:
        for place in range(12):
            written.append({"kind": "cell", "place": place, "ms": 0.1 * place, "text": "é\u2028"})
    whole, lines = path.read_bytes().splitlines(), []

    def read():
        """As the next campaign does, which keeps a damaged one beside it."""
        lines[:] = path.read_bytes().split(b"\n")[:-1]
        with Journal(path, "c") as found:
            records = [record for record in found.records if record["kind"] != LOST]
        for kept in path.parent.glob("*.damaged-*"):
            kept.unlink()
        return records

    def fits(found, expected):
        """Every line that was not touched is believed, in its place, and nothing else is."""
        return found == [record for line, record in zip(whole, expected, strict=True) if line in lines]

    return Target(path, read, fits)


def of_history(folder, result_file):
    """Runs whose figures leave each other's intervals. That the last of them were cut off, nothing in it can tell."""
    path = folder / compare.HISTORY
    for value in range(1, 5):
        rows = [judged("gat.compile", value, (value - 0.1, value + 0.1), 9, "")]
        results.write(folder / "02_optimize_gnn.json", result_file(notebook="02_optimize_gnn"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compare.ledger, "judge", lambda folder, rows=rows: Ledger(rows, []))
            compare.remember(folder, ["02"])
    assert len(read_lines(path.read_bytes()).records) == 4
    return Target(path, lambda: compare.history(folder), lambda found, whole: found == whole[len(whole) - len(found) :])


def of_table(name):
    def plant(folder, result_file):
        curve = CopyCurve.fit(sweep(TRUTH, [256 * 4**k for k in range(9)], noise=0.0, seed=0))
        cells = measured_cells(leave(folder / "stages"))
        compared = cells.iloc[:0].assign(kind="", predicted_ms=0.0, low_ms=0.0, high_ms=0.0, fitted=0, form="")
        transfers = MeasuredTransfers(curve, {"torch:CPU": curve}, {"torch:CPU": curve})
        chosen = tables.processor_units(cells)
        tables.write(folder, BandwidthFindings(cells, compared[COMPARED], None, transfers, chosen, None))

        def read():
            found = tables.load_tables(folder)
            return [found.predictor.predict("torch:CPU", 1, 5, 150, 500), found.transfers]

        return Target(folder / name, read)

    return plant


def of_exported(name):
    """A model as notebook 04 leaves it, read by the index; the files of an entry have digests of their own."""

    def plant(folder, result_file):
        fields = {"layer": "sage", "features": 500, "first": 1, "last": 2, "exporter": "onnx", "form": "plain"}
        ports = {"reads": ["x"], "writes": ["out"], "sized_by": []}

        def build(empty):
            (empty / "model.onnx").write_bytes(b"model" * 40)
            return Check("ready", error=1e-6)

        made = ModelStore(folder)
        for nodes in (None, 10, 20):
            wanted = Artefact(**fields, **ports, nodes=nodes, edges=nodes)
            found = made.make(wanted, {"kind": "onnx", **fields, **ports, "nodes": nodes}, build)
        path = folder / name if name == "index.json" else found.path.with_name(name)
        return Target(path, lambda: load_artefacts(folder))

    return plant


def of_checkpoint(folder, result_file):
    leave(folder)

    def read():
        checkpoints.merge(folder)
        return checkpoints.raw(folder)

    return Target(folder / "checkpoint_cpugpu.json", read)


def of_raw_measurements(folder, result_file):
    leave(folder)
    return Target(folder / checkpoints.RAW, lambda: checkpoints.raw(folder))


def of_result(folder, result_file):
    path, table = folder / "01_a.json", Table()
    for form in ("PyG", "gnnlab"):
        put(table, "gat_layer", {"size": "58/776"}, form, [1.0, 2.0, 3.0] * 3)
    results.write(path, result_file(), table)

    def read():
        result = results.read(path)
        held = results.table_of(path, result)
        return result, [None if (found := held.samples_of(row)) is None else found.tolist() for row in result.rows]

    return Target(path, read)


def of_samples(folder, result_file):
    target = of_result(folder, result_file)
    return Target(results.samples_path(target.path), target.read)


def of_runs(folder, result_file):
    path = folder / "01_a.json"
    results.write(path, result_file())
    outputs.write_runs(folder, outputs.Runs(runs={"01_a": outputs.record(result_file(), path, {"code": {}}, 1.0)}))
    return Target(
        folder / outputs.RUNS,
        lambda: outputs.read_runs(folder)[0].runs,
        lambda found, whole: found == {} or found == whole,
    )


def of_plans(folder, result_file):
    path, one = folder / "plans.json", {"nodes": 10, "edges": 20, "ms": (1.0,), "low": (0.5,), "high": (1.5,)}
    classes = (plan_store.SizeClass(**one, regret_p95=(0.0,), origin=("measured",)),)
    words = json.dumps([[["CPU"], [1, 2, 3, 4, 5, 6, 7], [1.0]]])
    learnt = Calibration({"sums beside sums": 1.2}, (Stream("9/9", words, True, 0.5, True, 0.1),))
    plan_store.write(path, plan_store.Compiled("print", "latency", learnt, (words,), classes))
    return Target(path, lambda: plan_store.read(path))


def of_training(folder, result_file):
    training.save(folder, {"model/w": torch.arange(50.0), "losses": torch.ones(3)}, {"position": {"epoch": 2}})

    def read():
        found = training.load(folder)
        return found and (found.facts, {name: tensor.tolist() for name, tensor in found.tensors.items()})

    return Target(folder / training.POINTER, read)


def of_tensors(folder, result_file):
    target = of_training(folder, result_file)
    return Target(next(folder.glob("*.safetensors")), target.read)


def stored(folder):
    """An entry as an exported model is kept."""
    key = {"kind": "openvino", "stage": 3}

    def build(empty):
        for name in ("model.onnx", "model.xml", "model.bin"):
            (empty / name).write_bytes(name.encode() * 40)

    place = Store(folder).make(key, build).folder

    def read():
        found = Store(folder).get(key)
        return found and {path.name: path.read_bytes() for path in found.iterdir() if path.name != "contents.json"}

    return place, read


def of_model(name):
    def plant(folder, result_file):
        place, read = stored(folder)
        return Target(place / name, read, lambda found, whole: found is None or found == whole)

    return plant


KINDS = {
    "journal": of_journal,
    "history": of_history,
    "times.json": of_table("times.json"),
    "transfers.json": of_table("transfers.json"),
    "model index": of_exported("index.json"),
    "model, check.json": of_exported("check.json"),
    "model, model.onnx": of_exported("model.onnx"),
    "campaign checkpoint": of_checkpoint,
    "raw measurements": of_raw_measurements,
    "result": of_result,
    "samples": of_samples,
    "runs.json": of_runs,
    "compiled plans": of_plans,
    "training checkpoint, facts": of_training,
    "training checkpoint, tensors": of_tensors,
    **{f"model store, {name}": of_model(name) for name in ("model.onnx", "model.xml", "model.bin", "contents.json")},
}


def flipped(content, random):
    place = int(random.integers(len(content)))
    return content[:place] + bytes([content[place] ^ int(random.integers(1, 256))]) + content[place + 1 :]


def another_digit(content, random):
    """What an editor would do: the file is as well formed as before."""
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        return flipped(content, random)
    place = int(random.choice(places))
    digit = b"0123456789"[(content[place] - 48 + int(random.integers(1, 10))) % 10]
    return content[:place] + bytes([digit]) + content[place + 1 :]


def cut(content, random):
    return content[: int(random.integers(len(content)))]


def lines_moved(content, random):
    """A line doubled, dropped, or all of them in another order."""
    lines = content.splitlines(keepends=True)
    place = int(random.integers(len(lines)))
    ways = [lines[: place + 1] + lines[place:], lines[:place] + lines[place + 1 :], list(random.permutation(lines))]
    return b"".join(ways[int(random.integers(3))])


CHANGES = {"bytes flipped": flipped, "digits edited": another_digit, "cut": cut, "lines moved": lines_moved}


def outcome_of(target, whole):
    try:
        found = target.read()
    except GnnlabError as error:
        return "survived" if len(str(error).splitlines()) == 1 else "lost"
    except Exception:
        return "lost"  # a traceback, and with it whatever would have come next
    return "survived" if target.fits(found, whole) else "invented"


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_as_it_was_written_or_not_believed(kind, tmp_path, result_file, random, number, tally):
    target = KINDS[kind](tmp_path / "ein Ordner, 名前 {0}", result_file)
    whole, content = target.read(), target.path.read_bytes()
    assert whole
    for name, change in CHANGES.items():
        for _ in range(number):
            changed = change(content, random)
            target.path.write_bytes(changed)
            found = "survived" if changed == content else outcome_of(target, whole)
            tally[f"{kind}: {name}"][found] += 1
            assert found == "survived", (kind, name, changed[:2000])
            target.path.write_bytes(content)
    assert target.read() == whole
