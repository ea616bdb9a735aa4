"""What notebook 04 records in the lab's one table: frames whose columns are named as the fields of a row are."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import pandas as pd

from gnnlab.optimize.study import BASELINE
from gnnlab.optimize.study_rows import race_rows
from gnnlab.stages.export.artefacts import FAILED, WRONG, Artefact
from gnnlab.stages.export.checking import ONNXRUNTIME
from gnnlab.stages.export.export import HANDBUILT
from gnnlab.stages.export.study import RIGHT

DOCUMENT = (14, 105)  # dynamic and static models of which S4 says how long they take
CAMPAIGN = ("onnx", "openvino")  # the exporters of the seven stages' dynamic models
LAYER = ("sage", 500)
DYNAMIC_SHAPES = "dynamic shapes"  # the baseline of the padding race
BETTER = {RIGHT: "higher", WRONG: "lower", FAILED: "lower"}
_EXACT = {"origin": "counted", "statistic": "count", "interval": "exact", "n": 1}
_SECONDS = {"unit": "s", "better": "lower", "origin": "measured", "statistic": "median"}


def models(table: pd.DataFrame) -> pd.DataFrame:
    """What was exported, counted: a row for models, those ready, files and MiB of each exporter and kind of shapes."""
    forms = {"models": ("models", "models"), "ready": ("ready", "models"), "files": ("files", "files")}
    forms["size on disk"] = ("mib", "MiB")
    rows = []
    for made in table.to_dict("records"):
        named = {"exporter": made["exporter"], "shapes": made["shapes"], "runtime": _exporting(made["exporter"])}
        for form, (column, unit) in forms.items():
            better = "higher" if form == "ready" else "neither"
            rows.append({**named, "form": form, "value": made[column], "unit": unit, "better": better, **_EXACT})
    return pd.DataFrame(rows)


def export_times(artefacts: Sequence[Artefact]) -> pd.DataFrame:
    """Seconds to export and check a model: a row for each exporter and kind of shapes, a sample for each model.

    Only models that this run made and found right count: what was found on the disk took its time in another run.
    """
    rows = []
    for exporter, shapes in dict.fromkeys(map(_kind, artefacts)):
        members = [a for a in artefacts if _kind(a) == (exporter, shapes)]
        seconds = [a.seconds for a in members if a.fresh and a.ready]
        row = {"exporter": exporter, "shapes": shapes, "form": f"{exporter}, {shapes}", "runtime": _exporting(exporter)}
        row |= {**_SECONDS, "status": "ok", "samples": seconds, "notes": _made(len(seconds), len(members))}
        if not seconds:
            row |= {
                "status": "unavailable",
                "reason": f"this run made none of {len(members)} that is right; anew: true makes them again",
            }
        rows.append(row)
    return pd.DataFrame(rows)


def export_total(artefacts: Sequence[Artefact]) -> pd.DataFrame:
    """Minutes for as many models as S4 exported: one row, with a value only where this run made every one of them.

    The fused blocks and the hand-built graphs, which S4 does not have, do not count.
    """
    asked = [a for a in artefacts if not a.dynamic or (a.exporter in CAMPAIGN and a.first == a.last)]
    counted = [a for a in asked if a.fresh and a.ready]
    minutes = sum(a.seconds for a in counted) / 60
    row = {"form": f"{DOCUMENT[0]} dynamic and {DOCUMENT[1]} static models", "unit": "min", "better": "lower"}
    row |= {"origin": "measured", "statistic": "single", "runtime": _exporting("onnx", "openvino")}
    if _counts(counted) == _counts(asked) == DOCUMENT and {(a.layer, a.features) for a in counted} == {LAYER}:
        return pd.DataFrame([{**row, "status": "ok", "value": minutes, "n": 1, "notes": _told(counted)}])
    return pd.DataFrame([{**row, "status": "unavailable", "reason": _lacking(asked, counted, minutes)}])


def _told(counted: Sequence[Artefact]) -> str:
    """What of the models is in their time."""
    same = len(counted) - len({a.key for a in counted})
    shared = f"; {same} equal another size's and were made like all others" if same else ""
    return f"each made and checked once by this run, one after another, static ones from the dynamic ones{shared}"


def _lacking(asked: Sequence[Artefact], counted: Sequence[Artefact], minutes: float) -> str:
    """How many there were, how long they took, and what all of them need."""
    dynamic, static = _counts(counted)
    found = f", of {len(asked)} asked for, the others being found or not right" if len(counted) < len(asked) else ""
    text = f"this run made {dynamic} dynamic and {static} static models in {minutes:.2g} minutes{found}"
    text += f"; S4 speaks of {DOCUMENT[0]} and {DOCUMENT[1]} of {LAYER[0]} with {LAYER[1]} features, which params/full"
    text += " makes (sizes: [study], static_sums: true, anew: true)"
    seconds = [[a.seconds for a in counted if a.dynamic is shapes] for shapes in (True, False)]
    if not all(seconds):
        return text
    about = sum(count * sum(some) / len(some) for count, some in zip(DOCUMENT, seconds, strict=True)) / 60
    return f"{text} in some {about:.2g} minutes at this rate"


def correctness(judged: pd.DataFrame) -> pd.DataFrame:
    """How often each combination of exporter, form and runtime is right, wrong and failed, counted."""
    rows = []
    for combination, part in judged.groupby("combination", sort=False):
        runtime = "onnxruntime" if part["runtime"].iloc[0] == ONNXRUNTIME else "openvino"
        for status, better in BETTER.items():
            found = part[part["status"] == status]
            row = {"combination": combination, "form": status, "value": len(found), "unit": "models", "better": better}
            row |= {**_EXACT, "runtime": _versions(runtime), "threads": 1, "parity_error": found["error"].max()}
            stages = ", ".join(found["stage"]) if status != RIGHT else ""
            rows.append({**row, "notes": [f"in {stages}"] if stages else []})
    return pd.DataFrame(rows)


def waste(table: pd.DataFrame) -> pd.DataFrame:
    """What padding to a bucket adds, in % of the bytes moved; computed from the shapes."""
    named = table.rename(columns={"policy": "form", "waste": "value"})
    return named.assign(unit="%", better="lower", notes="padded to " + named["bucket"], **_EXACT)


def padding(raced: pd.DataFrame) -> pd.DataFrame:
    """The races between static models and the one of dynamic shapes, which is the baseline."""
    rows = race_rows(raced, ["graph", "size"]).replace({c: {BASELINE: DYNAMIC_SHAPES} for c in ("form", "baseline")})
    return rows.assign(runtime=_versions("openvino"), threads=1)


def preparation(table: pd.DataFrame) -> pd.DataFrame:
    """What is made once for a graph, in ms."""
    named = table.rename(columns={"input": "form"})[["size", "form", "samples", "notes"]]
    return named.assign(unit="ms", better="lower", origin="measured", statistic="median")


def _kind(artefact: Artefact) -> tuple[str, str]:
    return artefact.exporter, "dynamic" if artefact.dynamic else "static"


def _counts(artefacts: Sequence[Artefact]) -> tuple[int, int]:
    dynamic = sum(a.dynamic for a in artefacts)
    return dynamic, len(artefacts) - dynamic


def _made(here: int, asked: int) -> str:
    return f"a sample for each model; this run made {here} of {asked} and they are right"


def _exporting(*exporters: str) -> str:
    """The packages that an exporter's models are made and checked by."""
    packages = dict.fromkeys(name for exporter in exporters for name in _PACKAGES.get(exporter, _PACKAGES["openvino"]))
    return _versions(*packages)


_PACKAGES: dict[str, tuple[str, ...]] = {
    "onnx": ("torch", "onnxruntime"),
    "openvino": ("torch", "openvino"),
    HANDBUILT: ("openvino",),
}
_NAMES = {"torch": "torch", "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}


def _versions(*packages: str) -> str:
    return ", ".join(f"{_NAMES[name]} {version(name)}" for name in packages)
