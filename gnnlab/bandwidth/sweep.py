"""What notebook 06 measures in addition to notebook 05: copies, and sizes that no fit has seen.

    measured = measure(outputs / "tables", stages=outputs / "stages", models=outputs / "exported_models")
    read(outputs / "tables", outputs / "stages")        # the same from the journals, nothing measured
    predictor = TimePredictor.fit(layer, measured.fit, Transfers.fit(measured.copies))
    prediction_rows(predictor, measured.test)                 # predicted beside measured, for `lab.record`

`tables/fit` holds the journal of copies and of sizes that are fitted, `tables/test` that of sizes that never are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from gnnlab.bandwidth.copies import IDENTITY, NODES, PLAIN_COPY, copy_configs
from gnnlab.bandwidth.predict import BLOCK, INTERPOLATED, MEASURED, Pair, TimePredictor, inside_hull
from gnnlab.errors import GnnlabError
from gnnlab.measure.estimates import CONFIDENCE, PREDICTION
from gnnlab.stages import journal
from gnnlab.stages.measure import Config, Settings, devices_at_work, run
from gnnlab.stages.rows import measurement_rows
from gnnlab.stages.sizes import Size

FIT, TEST = "fit", "test"  # folders of journals, within that of the tables
SETTINGS = ["layer", "features", "asked", "threads"]  # which all measurements of one fit share; asked: precision


class Measured(NamedTuple):
    """`fit`: measurements that predictions are fitted to, with those that failed; `test`: at sizes never fitted;
    `copies`: through devices and plain ones, with size_bytes and mib; `messages`: what a reader should know."""

    fit: pd.DataFrame
    test: pd.DataFrame
    copies: pd.DataFrame
    messages: list[str]


def measure(
    folder: Path,
    *,
    stages: Path,
    models: Path,
    devices: Sequence[str] = (),
    fit_sizes: Sequence[Size] = (),
    test_sizes: int = 12,
    points: int = 8,
    budget_s: float = 0.1,
    timeout_s: float = 60.0,
    seed: int = 0,
    cluster: str | None = None,
) -> Measured:
    """Measure copies, `fit_sizes` in addition to those of notebook 05, and `test_sizes` random ones between them.

    stages: the folder of notebook 05's journal; devices: of those that it measured, by default all.
    points: sizes of the copies; cluster: address of a Dask scheduler.
    Raises `GnnlabError`: nothing was measured there, a device has no times there, or the disk refuses.
    """
    known, messages = _of_stages(stages, devices)
    timed = known[known["ms"].notna()]
    sizes = sizes_of(timed)
    (layer, features, precision, threads), *_ = timed[SETTINGS].itertuples(index=False, name=None)
    blocks = list(timed[BLOCK].drop_duplicates().itertuples(index=False, name=None))
    more = [size for size in dict.fromkeys(each[:2] for each in fit_sizes) if size not in sizes]

    def at(sizes: Sequence[Pair]) -> list[Config]:
        asked = [(*size, first, last, name) for size in sizes for name, first, last in blocks]
        return [Config(layer, features, *each, precision, threads) for each in asked]

    copies = copy_configs(at(sizes), points, models)
    wanted = {FIT: at(more) + copies, TEST: at(draw([*sizes, *more], test_sizes, seed))}
    names = [*timed["device"].unique(), PLAIN_COPY]
    with devices_at_work(names, Settings(str(models), budget_s, timeout_s), cluster) as working:
        for name, configs in wanted.items():
            if configs:
                messages.append(f"{name}: {run(folder / name, configs, working, seed=seed).messages[-1]}")
    return read(folder, stages, devices)._replace(messages=messages)


def read(folder: Path, stages: Path, devices: Sequence[str] = ()) -> Measured:
    """What the journals of notebooks 05 and 06 hold, nothing measured; `devices` as in `measure`.

    Raises `GnnlabError`: there are no measurements, or a device has no times.
    """
    known, messages = _of_stages(stages, devices)
    if not (folder / FIT).exists():
        raise GnnlabError(f"no copies in {folder}; run notebooks 04, 05 and 06 first: gnnlab run 04 05 06")
    more = _journal(folder / FIT)
    alike = known[["device", *SETTINGS]].drop_duplicates()
    copying = pd.concat([alike, alike[:1].assign(device=PLAIN_COPY)]).assign(layer=IDENTITY)
    copies = more[(more["nodes"] == NODES) & more["ms"].notna()].merge(copying)
    size_bytes = 4 * copies["edges"] * copies["features"]
    copies = copies.assign(size_bytes=size_bytes, mib=(size_bytes / 2**20).round(4))
    fit = pd.concat([known, more[more["nodes"] != NODES].merge(alike)], ignore_index=True)
    test = _journal(folder / TEST).merge(alike) if (folder / TEST).exists() else fit[:0]
    new = ~pd.MultiIndex.from_frame(test[["nodes", "edges"]]).isin(sizes_of(fit)) & test["ms"].notna()
    return Measured(fit, test[new], copies, messages)


def _journal(folder: Path) -> pd.DataFrame:
    """Its frame, with the precision that was `asked` for."""
    frame = journal.read(folder)
    return frame.assign(asked=frame["key"].str.extract(r",(b?float16)\b")[0].fillna("float32"))


def _of_stages(stages: Path, devices: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The measurements of notebook 05 on these devices, of one layer and its settings, and what is left out."""
    known = _journal(stages)
    there = known.loc[known["ms"].notna(), "device"].unique().tolist()
    if lacking := [name for name in devices if name not in there] or ["any device"] * (not there):
        raise GnnlabError(f"notebook 05 has no times of {lacking[0]}; devices with times: {', '.join(there) or 'none'}")
    known = known[known["device"].isin(devices or there)]
    most = known.loc[known["ms"].notna(), SETTINGS].value_counts().index.to_frame(index=False)
    left = f"{len(most)} layers and settings were measured; that with most times is taken: {most.iloc[0].to_dict()}"
    return known.merge(most[:1]), [left] * (len(most) > 1)


def sizes_of(measured: pd.DataFrame) -> list[Pair]:
    """Sizes at which anything has a time, each once."""
    timed = measured.loc[measured["ms"].notna(), ["nodes", "edges"]]
    return list(timed.drop_duplicates().itertuples(index=False, name=None))


def draw(sizes: Sequence[Pair], count: int, seed: int) -> list[Pair]:
    """`count` new sizes at random inside the hull of `sizes`, uniform in log N and log E; fewer where it has fewer."""
    known, random = np.array(sizes), np.random.default_rng(seed)  # (sizes, 2)
    ends = np.log([known.min(axis=0), known.max(axis=0)])
    drawn = np.rint(np.exp(random.uniform(*ends, (400 * max(count, 1), 2)))).astype(int)
    inside = dict.fromkeys(map(tuple, drawn[inside_hull(known, drawn)].tolist()))
    return [size for size in inside if size not in sizes][:count]


def prediction_rows(predictor: TimePredictor, test: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of measurements at sizes between those that were fitted; keys are runs_on (the device), stage and size.

    `off_grid`: ms, measured and predicted (90 %). `off_grid_error`: by how much the prediction is off, in percent of
    the measured time; its interval is what the measurement leaves open. Both are empty where nothing was measured.
    """
    predicted = {}
    for place, *key, nodes, edges in test[[*BLOCK, "nodes", "edges"]].itertuples():
        if tuple(key) in predictor.coefficients:
            predicted[place] = *predictor.predict(*key, nodes, edges), len(predictor.measured[tuple(key)])
    predicted = pd.DataFrame.from_dict(predicted, "index", columns=["value", "low", "high", "origin", "n"])
    predicted = predicted[predicted["origin"] == INTERPOLATED]
    test = test.loc[predicted.index]
    if test.empty:
        return dict.fromkeys(("off_grid", "off_grid_error"), predicted.assign(runs_on="", stage="", size=""))
    rows = measurement_rows(test).set_index(test.index).assign(runs_on=test["device"], variant="predicted")
    times = rows.drop(columns="samples").assign(statistic="estimate", interval=PREDICTION, **predicted)
    off = 100 * (test[["ms", "ms_low", "ms_high"]].rdiv(predicted["value"], axis=0) - 1).abs()
    none = predicted["value"].between(test["ms_low"], test["ms_high"])
    ends = {"value": off["ms"], "low": off.min(axis=1).mask(none, 0.0), "high": off.max(axis=1), "n": test["n"]}
    return {
        "off_grid": pd.concat([rows.assign(variant="measured"), times]).sort_index(kind="stable"),
        "off_grid_error": times.assign(**ends, unit="%", origin=MEASURED, interval=CONFIDENCE),
    }
