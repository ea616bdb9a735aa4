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
FINE = {"applies": True, "why": "planted", "once_s": 0.1, "share": None, "proof": PROVEN, "right": True, "call_s": 0.01}
FACTS = {"nodes": 34, "edges": 156, "parameters": 9, "threads": 1, "versions": {"python": "3"}, "processor": "P"}
FACTS |= {"cores": 2, "limit_ms": None, "told": [], "busy": None}


def times(factor, seed=0):
    """ms of 30 rounds of a form that takes `factor` times as long as the user's."""
    return (10 * factor * np.random.default_rng(seed).normal(1, 0.01, 30)).tolist()


class Planted:
    """Workers that answer `found` of each step and times by `factor(plan, process)`. `clock` shows the time that they
    took: `start_s` for each start, `seconds(target, plan)` for each task; what takes longer than its limit is lost."""

    def __init__(self, factor, found=None, start_s=0.0, seconds=lambda target, plan: 0.0):
        self.factor, self.found, self.start_s, self.seconds = factor, found or {}, start_s, seconds
        self.started, self.asked, self.now = 0, [], 0.0

    def __call__(self, **environment):
        self.started += 1
        return Process(self, self.started)

    def clock(self):
        return self.now


class Process:
    def __init__(self, planted, number):
        self.planted, self.number, self.alive = planted, number, False

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def call(self, target, arguments, *, timeout_s):
        name, planted = target.rpartition(":")[2], self.planted
        planted.asked.append((name, self.number, arguments.get("plan")))
        planted.now += 0.0 if self.alive else planted.start_s
        takes_s = planted.seconds(name, arguments.get("plan")) + arguments.get("budget_s", 0.0)
        planted.now += min(takes_s, timeout_s)
        self.alive = takes_s <= timeout_s
        if not self.alive:
            return Answer("timeout", reason=f"no answer within {timeout_s:g} s")
        value = getattr(self, name)(**arguments)
        return value if isinstance(value, Answer) else Answer("done", value)

    def examine(self, **arguments):
        return FACTS

    def ready(self, **arguments):
        return 0.01

    def attempt(self, plan, **arguments):
        found = self.planted.found.get(plan[0], {}) if len(plan) == 1 else {}
        if isinstance(found, Answer):
            return found
        made = FINE | found
        if len(plan) == 1 and made["applies"] and made["right"]:
            made["times"] = {name: times(1) for name in (YOURS, CONTROL)} | {plan[0]: times(self.factor(plan), seed=1)}
        return made

    def factor(self, plan):
        return self.planted.factor(tuple(plan), self.number)

    def race(self, plans, seed, **arguments):
        factors = {YOURS: 1, CONTROL: 1, **{" + ".join(plan): self.factor(plan) for plan in plans}}
        return {name: times(factor, (seed, place)) for place, (name, factor) in enumerate(factors.items())}


class Here(Process):
    """A worker whose tasks run in this process."""

    def call(self, target, arguments, *, timeout_s):
        module, _, name = target.partition(":")
        try:
            return Answer("done", getattr(importlib.import_module(module), name)(**arguments))
        except GnnlabError as error:
            return Answer("raised", reason=one_line(error))
