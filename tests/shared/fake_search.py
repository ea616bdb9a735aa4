"""The search of `gnnlab optimize` with planted races: only their gains are planted, or all that processes say."""

from functools import partial

from gnnlab.child import Answer
from gnnlab.measure import estimates
from gnnlab.measure.estimates import Estimate
from gnnlab.measure.versus import Memory, Peak, Versus
from gnnlab.optimize import search
from gnnlab.optimize.equivalence import SAME_SIZE, YOUR_GRAPH
from gnnswap.errors import OneLineError, one_line

CHECKED = {"error": 1e-7, "passed": [YOUR_GRAPH, SAME_SIZE], "wrong": {}, "skipped": {}}
FACTS = {"read": ["karate: 34 nodes"], "nodes": 34, "edges": 156}
FACTS |= {"threads": 1, "versions": {"python": "3"}, "processor": "P", "cores": 2}


def raced(factors, memory=False):
    """A race whose `after` takes `factors` times as long as `before`, one in each process."""
    runs = tuple(Estimate(1 / f, 0.99 / f, 1.01 / f, 30) for f in factors)
    ms = (Estimate(10 * f, 10 * f, 10 * f, 30) for f in (1, factors[0]))
    peaks = Memory(*(Peak(mib, mib, True, "cpu", 2.0, 1.0) for mib in (64.0, 32.0))) if memory else None
    return Versus(estimates.combine_runs(runs, log=True), runs, *ms, 1e-7, "1 thread, highest", "cpu", peaks)


class Planted:
    """`factor(plan, process)`: how long a plan takes, over the user's model. `found`: by step what `attempt` says of
    it, or a str: why it does not apply. `here`: whether the work of processes is done in this one, but for races."""

    def __init__(self, monkeypatch, factor, found=None, here=False):
        self.factor, self.found, self.races = factor, found or {}, []
        monkeypatch.setattr(search, "_ask", partial(self.ask, here))
        monkeypatch.setattr(search, "_race", self.race)

    def race(self, of, old, new, *, processes, memory=False, enough=lambda first: False, **options):
        self.races.append((old, new))
        factors = [self.factor(new, n) / self.factor(old, n) if old else self.factor(new, n) for n in range(processes)]
        return raced(factors[:1] if enough(raced(factors[:1]).speed) else factors, memory)

    def ask(self, here, worker, of, target, **arguments):
        try:
            value = getattr(search if here else self, target)(of=of, **arguments)
            return value if isinstance(value, Answer) else Answer("done", value)
        except OneLineError as error:
            return Answer("raised", reason=one_line(error))

    def examine(self, of, names):
        why = {name: found for name in names if isinstance(found := self.found.get(name), str)}
        return {
            "call_s": 0.01,
            "facts": {**FACTS},
            "applicable": {n: "planted" for n in names if n not in why},
            "inapplicable": why,
        }

    def attempt(self, of, plan):
        found = next((self.found[name] for name in plan if name in self.found), {})
        return found if isinstance(found, Answer) else {"why": None, "checked": CHECKED} | found
