"""What was exported, as rows of the lab's table: how many models, how long each took, how long as many as S4's took."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from gnnlab import machine
from gnnlab.export.artefacts import Artefact

DYNAMIC, STATIC = 14, 105  # models of which S4 says how long they take
CAMPAIGN = ("onnx", "openvino")  # the exporters of the seven stages' dynamic models
LAYER = ("sage", 500)
_MADE_BY = {"onnx": ("torch", "onnxruntime"), "handbuilt": ("openvino",)}  # others: torch, openvino
_NAMES = {"torch": "torch", "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}


def frames(artefacts: Sequence[Artefact]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """How many models, how long one took, and how long as many as S4's took: rows keyed by exporter and shapes.

    Times are of models that this run made and found right; of those found on the disk there is none.
    """
    counts, times = [], []
    for exporter, shapes in dict.fromkeys((a.exporter, a.shapes) for a in artefacts):
        members = [a for a in artefacts if (a.exporter, a.shapes) == (exporter, shapes)]
        named = {"exporter": exporter, "shapes": shapes, "runtime": _runtime(exporter)}
        counted = {
            "models": (len(members), "models", "neither"),
            "ready": (sum(a.ready for a in members), "models", "higher"),
            "files": (sum(a.path is not None for a in members), "files", "neither"),
            "size on disk": (sum(a.size_bytes for a in members) / 2**20, "MiB", "neither"),
        }
        counts += [{**named, "form": f, "value": v, "unit": u, "better": b} for f, (v, u, b) in counted.items()]
        seconds = [a.seconds for a in members if a.fresh and a.ready]
        row = {
            **named,
            "form": f"{exporter}, {shapes}",
            "samples": seconds,
            "status": "ok" if seconds else "unavailable",
        }
        row["notes"] = f"a sample for each model; this run made {len(seconds)} of {len(members)} and they are right"
        row["reason"] = None if seconds else f"this run made none of {len(members)} that is right; set anew: true"
        times.append(row)
    return (
        pd.DataFrame(counts).assign(origin="counted", statistic="count", interval="exact", n=1),
        pd.DataFrame(times).assign(unit="s", better="lower", origin="measured", statistic="median"),
        _total(artefacts),
    )


def _total(artefacts: Sequence[Artefact]) -> pd.DataFrame:
    """Minutes for as many models as S4 exported: one row, with a value only where this run made every one of them.

    The fused blocks and the hand-built graphs, which S4 does not have, do not count.
    """
    asked = [a for a in artefacts if a.first == a.last and (a.exporter in CAMPAIGN or not a.dynamic)]
    made = [a for a in asked if a.fresh and a.ready and (a.layer, a.features) == LAYER]
    row = {"form": f"{DYNAMIC} dynamic and {STATIC} static models", "unit": "min", "n": 1, "status": "ok"}
    row |= {"better": "lower", "origin": "measured", "statistic": "single", "runtime": _runtime(*CAMPAIGN)}
    dynamic, static = sum(a.dynamic for a in made), sum(not a.dynamic for a in made)
    if len(asked) == len(made) and (dynamic, static) == (DYNAMIC, STATIC):
        row["value"] = sum(a.seconds for a in made) / 60
        row["notes"] = "each made and checked once by this run, one after another, static ones from the dynamic ones"
    else:
        row["status"] = "unavailable"
        row["reason"] = (
            f"this run made {dynamic} dynamic and {static} static models of {LAYER[0]} with {LAYER[1]} features that "
            "are right; params/full makes as many as S4 (sizes: [study], static_sums: true, anew: true)"
        )
    return pd.DataFrame([row])


def _runtime(*exporters: str) -> str:
    """The packages that an exporter's models are made and checked by."""
    packages = dict.fromkeys(name for e in exporters for name in _MADE_BY.get(e, ("torch", "openvino")))
    return ", ".join(f"{_NAMES[name]} {machine.version(name)}" for name in packages)
