"""Processes of `gnnlab optimize` that answer what a test plants, or work in this process with planted times."""

import importlib

import numpy as np

from gnnlab.errors import GnnlabError, one_line
from gnnlab.profiling.estimates import CONTROL
from gnnlab.rewrite.bench import YOURS
from gnnlab.rewrite.proof import SAME_SIZE
from gnnlab.rewrite.proof import YOURS as YOUR_GRAPH
from gnnlab.worker import Answer

PROVEN = {"error": 1e-7, "held": [YOUR_GRAPH, SAME_SIZE], "wrong": {}, "refused": {}, "skipped": {}}
FINE = {"applies": True, "why": "planted", "once_s": 0.1, "share": None, "proof": PROVEN, "right": True}
FACTS = {"nodes": 34, "edges": 156, "parameters": 9, "threads": 1, "versions": {"python": "3"}, "processor": "P"}
FACTS |= {"cores": 2, "limit_ms": None, "told": []}


class Planted:
    """Workers that answer `found` of each step and times by `factor(plan, process)`; each task takes `task_s`."""

    def __init__(self, factor, found=None, task_s=0.0):
        self.factor, self.found, self.task_s, self.started, self.asked = factor, found or {}, task_s, 0, []

    def __call__(self, **environment):
        self.started += 1
        return Process(self, self.started)


class Process:
    def __init__(self, planted, number):
        self.planted, self.number = planted, number

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def call(self, target, arguments, *, timeout_s):
        name = target.rpartition(":")[2]
        self.planted.asked.append((name, self.number, arguments.get("plan")))
        value = getattr(self, name)(**arguments)
        return value if isinstance(value, Answer) else Answer("done", value, end_s=self.planted.task_s)

    def examine(self, **arguments):
        return FACTS

    alive = False

    def ready(self, **arguments):
        pass

    def attempt(self, plan, **arguments):
        found = self.planted.found.get(plan[0], {}) if len(plan) == 1 else {}
        return found if isinstance(found, Answer) else FINE | found

    def race(self, plans, seed, **arguments):
        draw = np.random.default_rng(seed)

        def times(factor):
            return {"times_ms": (10 * factor * draw.normal(1, 0.01, 30)).tolist(), "reason": None}

        found = {" + ".join(plan): times(self.planted.factor(tuple(plan), self.number)) for plan in plans}
        return {YOURS: times(1), CONTROL: times(1), **found}


class Here(Process):
    """A worker whose tasks run in this process, but for races, whose times are planted."""

    def call(self, target, arguments, *, timeout_s):
        module, _, name = target.partition(":")
        if name == "race":
            return super().call(target, arguments, timeout_s=timeout_s)
        try:
            return Answer("done", getattr(importlib.import_module(module), name)(**arguments))
        except GnnlabError as error:
            return Answer("raised", reason=one_line(error))
