"""Frames as rows of the lab's one table, as `Lab.record` makes them: what contradicts itself is refused."""

from gnnlab.lab.table import FIELDS, Interval, row
from gnnlab.profiling import estimates

TORCH = {"device": "CPU chip", "runtime": "torch 1", "precision": "float32", "threads": 2}


def as_rows(frame, *keys, **constant):
    """A row for each row of `frame`; conditions that neither it nor `constant` names are those of torch."""
    found = []
    for given in frame.to_dict("records"):
        fields = TORCH | constant | {name: given[name] for name in FIELDS if name in given and name != "keys"}
        samples = given.get("samples")
        if samples is not None and len(samples):
            got = estimates.summary(samples, fields["statistic"])
            kind = Interval.NONE if got.low is None else Interval.CONFIDENCE
            fields |= {"value": got.value, "low": got.low, "high": got.high, "n": got.n, "interval": kind}
        found.append(row(study="s", keys={key: given[key] for key in keys}, **fields))
    return found
