"""What was exported, as rows of the lab's table: how many models, how long each took, how long as many as S4's took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from gnnlab import machine
from gnnlab.export.artefacts import DYNAMIC, Artefact

DOCUMENT = {"dynamic": 14, "static": 105}  # models of which S4 says how long they take
CAMPAIGN = ("onnx", "openvino")  # the exporters of the seven stages' dynamic models
LAYER = ("sage", 500)
_MADE_BY = {"onnx": ("torch", "onnxruntime"), "handbuilt": ("openvino",)}  # others: torch, openvino
_NAMES = {"torch": "torch", "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}


def frames(artefacts: Sequence[Artefact]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """How many models, how long one took, and how long as many as S4's took: rows keyed by exporter and shapes."""
    return _counts(artefacts), _times(artefacts), _total(artefacts)


def _counts(artefacts: Sequence[Artefact]) -> pd.DataFrame:
    """Models, those ready, files (equal models share theirs) and MiB on disk, by exporter and kind of shapes."""
    rows = []
    for named, members in _kinds(artefacts):
        sizes = {a.path: a.size_bytes for a in members if a.path is not None}
        found = {
            "models": (len(members), "models", "neither"),
            "ready": (sum(a.ready for a in members), "models", "higher"),
            "files": (len(sizes), "files", "neither"),
            "size on disk": (sum(sizes.values()) / 2**20, "MiB", "neither"),
        }
        rows += [{**named, "form": f, "value": v, "unit": u, "better": b} for f, (v, u, b) in found.items()]
    return pd.DataFrame(rows).assign(origin="counted", statistic="count", interval="exact", n=1)


def _times(artefacts: Sequence[Artefact]) -> pd.DataFrame:
    """Seconds to export and check a model, by exporter and kind of shapes, a sample for each.

    Only models that this run made and found right count: what was found on the disk took its time in another run.
    """
    rows = []
    for named, members in _kinds(artefacts):
        seconds = [a.seconds for a in members if a.fresh and a.ready]
        row = {**named, "form": f"{named['exporter']}, {named['shapes']}", "status": "ok", "samples": seconds}
        row["notes"] = f"a sample for each model; this run made {len(seconds)} of {len(members)} and they are right"
        if not seconds:
            why = f"this run made none of {len(members)} that is right; anew: true makes them again"
            row |= {"status": "unavailable", "reason": why}
        rows.append(row)
    return pd.DataFrame(rows).assign(unit="s", better="lower", origin="measured", statistic="median")


def _total(artefacts: Sequence[Artefact]) -> pd.DataFrame:
    """Minutes for as many models as S4 exported: one row, with a value only where this run made every one of them.

    The fused blocks and the hand-built graphs, which S4 does not have, do not count.
    """
    asked = [a for a in artefacts if a.first == a.last and (a.exporter in CAMPAIGN or not a.dynamic)]
    counted = [a for a in asked if a.fresh and a.ready]
    row = {"form": f"{_told(DOCUMENT)} models", "unit": "min", "n": 1}
    row |= {"better": "lower", "origin": "measured", "statistic": "single", "runtime": _runtime(*CAMPAIGN)}
    whole = _numbers(counted) == _numbers(asked) == DOCUMENT
    if not whole or {(a.layer, a.features) for a in counted} != {LAYER}:
        return pd.DataFrame([{**row, "status": "unavailable", "reason": _lacking(asked, counted)}])
    same = len(counted) - len({a.key for a in counted})
    shared = f"; {same} equal another size's and were made like all others" if same else ""
    notes = f"each made and checked once by this run, one after another, static ones from the dynamic ones{shared}"
    return pd.DataFrame([{**row, "status": "ok", "value": _minutes(counted), "notes": notes}])


def _lacking(asked: Sequence[Artefact], counted: Sequence[Artefact]) -> str:
    """How many there were, how long they took, and what all of them need."""
    found = _numbers(counted)
    text = f"this run made {_told(found)} models in {_minutes(counted):.2g} minutes"
    if len(counted) < len(asked):
        text += f", of {len(asked)} asked for, the others being found or not right"
    text += f"; S4 speaks of {_told(DOCUMENT)} of {LAYER[0]} with {LAYER[1]} features, which params/full makes"
    text += " (sizes: [study], static_sums: true, anew: true)"
    if not all(found.values()):
        return text
    rate = {shapes: _minutes([a for a in counted if a.shapes == shapes]) / n for shapes, n in found.items()}
    return f"{text} in some {sum(rate[shapes] * n for shapes, n in DOCUMENT.items()):.2g} minutes at this rate"


def _told(numbers: Mapping[str, int]) -> str:
    return " and ".join(f"{n} {shapes}" for shapes, n in numbers.items())


def _numbers(artefacts: Sequence[Artefact]) -> dict[str, int]:
    dynamic = sum(a.shapes == DYNAMIC for a in artefacts)
    return {"dynamic": dynamic, "static": len(artefacts) - dynamic}


def _minutes(artefacts: Sequence[Artefact]) -> float:
    return sum(a.seconds for a in artefacts) / 60


def _kinds(artefacts: Sequence[Artefact]) -> list[tuple[dict[str, str], list[Artefact]]]:
    """The artefacts of each exporter and kind of shapes, and what their rows have in common."""
    kinds = dict.fromkeys((a.exporter, a.shapes) for a in artefacts)
    return [
        (
            {"exporter": e, "shapes": s, "runtime": _runtime(e)},
            [a for a in artefacts if (a.exporter, a.shapes) == (e, s)],
        )
        for e, s in kinds
    ]


def _runtime(*exporters: str) -> str:
    """The packages that an exporter's models are made and checked by."""
    packages = dict.fromkeys(name for e in exporters for name in _MADE_BY.get(e, ("torch", "openvino")))
    return ", ".join(f"{_NAMES[name]} {machine.version(name)}" for name in packages)
