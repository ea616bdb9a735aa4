"""What was exported, as rows of the lab's table: how many models, how long each took, how long as many as S4's took."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from gnnlab import machine
from gnnlab.export.artefacts import Artefact

DYNAMIC, STATIC = 14, 105  # models of which S4 says how long they take
CAMPAIGN = ("onnx", "openvino")  # the exporters of the seven stages' dynamic models
LAYER = ("sage", 500)


def frames(artefacts: Sequence[Artefact]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """How many models, how long one took, and how long as many as S4's took: rows keyed by exporter and shapes.

    Times are of models that this run made and found right; of those that were there already there is none.
    """
    counts, times = [], []
    for exporter, dynamic in dict.fromkeys((a.exporter, a.dynamic) for a in artefacts):
        members = [a for a in artefacts if (a.exporter, a.dynamic) == (exporter, dynamic)]
        key = {"exporter": exporter, "shapes": "dynamic" if dynamic else "static"}
        mib = sum(a.size_bytes for a in members) / 2**20
        counts += [
            {**key, "form": "models", "value": len(members), "unit": "models", "better": "neither"},
            {**key, "form": "ready", "value": sum(a.ready for a in members), "unit": "models", "better": "higher"},
            {**key, "form": "size on disk", "value": mib, "unit": "MiB", "better": "neither"},
        ]
        seconds = [a.seconds for a in members if a.fresh and a.ready]
        row = {**key, "form": ", ".join(key.values()), "samples": seconds, "status": "ok" if seconds else "unavailable"}
        row["notes"] = f"a sample for each model; this run made {len(seconds)} of {len(members)} and they are right"
        row["reason"] = None if seconds else f"this run made none of {len(members)} that is right; set anew: true"
        times.append(row)
    runtime = ", ".join(f"{name} {machine.version(name)}" for name in ("torch", "openvino", "onnxruntime"))
    counted = {"origin": "counted", "statistic": "count", "interval": "exact", "n": 1}
    measured = {"origin": "measured", "better": "lower"}
    return (
        pd.DataFrame(counts).assign(**counted, runtime=runtime),
        pd.DataFrame(times).assign(**measured, unit="s", statistic="median", runtime=runtime),
        pd.DataFrame([_total(artefacts)]).assign(**measured, unit="min", statistic="single", runtime=runtime),
    )


def _total(artefacts: Sequence[Artefact]) -> dict[str, object]:
    """Minutes for as many models as S4 exported, with a value only where this run made every one of them.

    The fused blocks and the hand-built graphs, which S4 does not have, do not count.
    """
    asked = [a for a in artefacts if a.first == a.last and (a.exporter in CAMPAIGN or not a.dynamic)]
    made = [a for a in asked if a.fresh and a.ready and (a.layer, a.features) == LAYER]
    dynamic, static = sum(a.dynamic for a in made), sum(not a.dynamic for a in made)
    row: dict[str, object] = {"form": f"{DYNAMIC} dynamic and {STATIC} static models"}
    if len(asked) == len(made) and (dynamic, static) == (DYNAMIC, STATIC):
        notes = "each made and checked once by this run, one after another, static ones from the dynamic ones"
        return row | {"value": sum(a.seconds for a in made) / 60, "n": 1, "notes": notes}
    reason = (
        f"this run made {dynamic} dynamic and {static} static models of {LAYER[0]} with {LAYER[1]} features that "
        "are right; params/full makes as many as S4 (sizes: [study], static_sums: true, anew: true)"
    )
    return row | {"status": "unavailable", "reason": reason}
