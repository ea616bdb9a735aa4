"""Processes of `gnnlab optimize` that answer what a test plants, or work in this process with planted times."""

import importlib
from contextlib import AbstractContextManager

import numpy as np

from gnnlab.measure.estimates import CONTROL
from gnnlab.optimize.equivalence import SAME_SIZE
from gnnlab.optimize.equivalence import YOURS as YOUR_GRAPH
from gnnlab.optimize.search import YOURS
from gnnlab.worker import Answer
from gnnswap.errors import OneLineError, one_line

PROVEN = {"error": 1e-7, "held": [YOUR_GRAPH, SAME_SIZE], "wrong": {}, "skipped": {}}
FACTS = {"nodes": 34, "edges": 156, "threads": 1, "versions": {"python": "3"}, "processor": "P"}
FACTS |= {"cores": 2}


def times(factor, seed=0):
    """ms of 30 rounds of a form that takes `factor` times as long as the user's."""
    return (10 * factor * np.random.default_rng(seed).normal(1, 0.01, 30)).tolist()


class Planted:
    """Workers that answer `found` of each step (a str: why it does not apply) and times by `factor(plan, process)`.
    `clock` shows the time that they took: `start_s` for each start, `seconds(target, plan)` for each task; what takes
    longer than its limit is lost."""

    def __init__(self, factor, found=None, start_s=0.0, seconds=lambda target, plan: 0.0):
        self.factor, self.found, self.start_s, self.seconds = factor, found or {}, start_s, seconds
        self.started, self.asked, self.now, self.turns = 0, [], 0.0, 0

    def __call__(self, **environment):
        self.started += 1
        return Process(self, self.started)

    def clock(self):
        return self.now


class Process(AbstractContextManager):
    def __init__(self, planted, number):
        self.planted, self.number, self.alive = planted, number, False

    def __exit__(self, *exception):
        pass

    def submit(self, target, arguments):
        pass  # the call that waits for it takes its time

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

    def examine(self, names, **arguments):
        why = {name: found for name in names if isinstance(found := self.planted.found.get(name), str)}
        applicable = {name: "planted" for name in names if name not in why}
        return {"facts": FACTS, "applicable": applicable, "inapplicable": why, "held_mib": 2.0}

    def load(self, **arguments):
        return None

    def attempt(self, plan, **arguments):
        found = next((self.planted.found[name] for name in plan if name in self.planted.found), {})
        return found if isinstance(found, Answer) else {"why": None, "proof": PROVEN, "held_mib": 1.0} | found

    def race(self, plans, seed, **arguments):
        factors = {YOURS: 1, CONTROL: 1}
        factors |= {" + ".join(plan): self.planted.factor(tuple(plan), self.number) for plan in plans}
        return {name: times(factor, (seed, place)) for place, (name, factor) in enumerate(factors.items())}

    def turn(self, plans, **arguments):
        self.planted.turns += 1
        return [times(self.planted.factor(tuple(p), self.number) if p else 1, self.planted.turns)[0] for p in plans]


class Here(Process):
    """A worker whose tasks run in this process, but for the races."""

    def call(self, target, arguments, *, timeout_s):
        module, _, name = target.partition(":")
        work = getattr(self if name in ("race", "turn") else importlib.import_module(module), name)
        try:
            return Answer("done", work(**arguments))
        except OneLineError as error:
            return Answer("raised", reason=one_line(error))
