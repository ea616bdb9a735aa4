"""Parallel execution plans: which unit runs which stages. Their notation, what is legal, and every candidate.

    plan = parse("1-5 on CPU and GPU (0.5, 0.5), 6-7 on NPU")
    str(plan)                                 # [[["CPU","GPU"],[1,2,3,4,5],[0.5,0.5]],[["NPU"],[6,7]]], read as well
    space = Space(units=("CPU", "GPU", "NPU"), unable={"NPU": {3, 4}}, ratios=(0.5,))
    space.check(plan)                         # GnnlabError names the rule that a plan breaks
    len(space.candidates())                   # 28

The list notation is that of the GNX profiling guide: blocks [units, stages, ratios]; ratios belong to a block of
several units, which share one graph in these parts (data parallelism). The rules: blocks are contiguous and cover every
stage once, in order; a unit stands in one block only; only units that may share do; no unit gets a stage that it cannot
run.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations, product
from typing import Any

from gnnlab.errors import GnnlabError
from gnnswap.errors import quoted

RATIOS = (0.3, 0.5, 0.7)  # parts that the first of two units which share a graph may take


@dataclass(frozen=True)
class Block:
    """Stages `first` to `last` on one unit, or on several that share the graph in the parts `ratios`."""

    units: tuple[str, ...]
    first: int
    last: int
    ratios: tuple[float, ...] = (1.0,)

    @property
    def stages(self) -> range:
        return range(self.first, self.last + 1)

    @property
    def shared(self) -> bool:
        return len(self.units) > 1


@dataclass(frozen=True)
class Plan:
    """Blocks in the order of their stages. `str(plan)` is the notation that `parse` reads."""

    blocks: tuple[Block, ...]

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(unit for block in self.blocks for unit in block.units)

    def __str__(self) -> str:
        blocks = [[b.units, list(b.stages), b.ratios][: 3 if b.shared else 2] for b in self.blocks]
        return json.dumps(blocks, separators=(",", ":"))

    def words(self) -> str:
        """For a reader: "stages 1-5 on CPU and GPU (0.5, 0.5), 6-7 on NPU"."""
        parts = []
        for block in self.blocks:
            span = f"{block.first}-{block.last}" if block.last > block.first else f"{block.first}"
            ratios = f" ({', '.join(f'{r:g}' for r in block.ratios)})" if block.shared else ""
            parts.append(f"{span} on {' and '.join(block.units)}{ratios}")
        return f"stages {', '.join(parts)}"


_EXAMPLE = '1-5 on CPU, 6-7 on NPU, or as [[["CPU"],[1,2,3,4,5]],[["NPU"],[6,7]]]'
_RATIOS = r"\d*\.?\d+(?:, ?\d*\.?\d+)*"
_WORDS = re.compile(rf"(\d{{1,2}})(?:-(\d{{1,2}}))? on ([^,()\s]+(?: and [^,()\s]+)*)(?: \(({_RATIOS})\))?(?:, |$)")


def parse(text: str | Sequence) -> Plan:
    """A plan from words ("1-5 on CPU, 6-7 on NPU") or the list notation, as text (JSON, Python) or as nested lists.

    Raises:
        GnnlabError: neither of these; which rules a plan keeps is asked of `Space.check`.
    """
    given = text
    if isinstance(text, str):
        given = _listed(text.strip()) if text.strip().startswith("[") else _worded(text.strip())
        if given is None:
            raise GnnlabError(f"plan {quoted(text)} is not understood; write it as {_EXAMPLE}")
    if not isinstance(given, (list, tuple)) or not given:
        raise GnnlabError(f"plan {quoted(text)} has no blocks; write it as {_EXAMPLE}")
    return Plan(tuple(map(_block, given)))


def _listed(text: str) -> object | None:
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _worded(text: str) -> list | None:
    """As `Plan.words` writes it."""
    text = text.removeprefix("stages ")
    parts = list(_WORDS.finditer(text))
    if not parts or "".join(match[0] for match in parts) != text:
        return None
    return [
        [
            units.split(" and "),
            list(range(int(first), int(last or first) + 1)),
            *([[float(ratio) for ratio in ratios.split(",")]] if ratios else []),
        ]
        for first, last, units, ratios in (match.groups() for match in parts)
    ]


def _block(entry: Any) -> Block:
    """A block of the list notation."""
    try:
        units, stages, ratios = entry if len(entry) == 3 else (*entry, [1.0])
        units = [units] if isinstance(units, str) else units
        right = (
            all(isinstance(unit, str) and unit for unit in units)
            and all(type(stage) is int for stage in stages)
            and list(stages) == list(range(stages[0], stages[0] + len(stages)))
            and len(ratios) == len(units) > 0
            and all(0 < ratio <= 1 for ratio in ratios)
            and math.isclose(sum(ratios), 1, abs_tol=1e-5)
        )
    except (TypeError, ValueError, IndexError):
        right = False
    if not right:
        raise GnnlabError(
            f'block {quoted(entry)} is no [units, stages, ratios], as [["CPU","GPU"],[1,2,3],[0.5,0.5]]: names; '
            "numbers that rise by one; and for several units a ratio each, above 0, that add up to 1"
        )
    return Block(tuple(units), stages[0], stages[-1], tuple(map(float, ratios)))


@dataclass(frozen=True)
class Space:
    """The plans that a machine allows.

    `unable` holds the stages that a unit cannot run, `sharing` the pairs of units that may share a block, `ratios` the
    part of the first of a pair (1 - ratio is the other's).
    """

    units: tuple[str, ...]
    stages: int = 7
    unable: Mapping[str, Iterable[int]] = field(default_factory=dict)
    sharing: tuple[frozenset[str], ...] = (frozenset({"CPU", "GPU"}),)
    ratios: tuple[float, ...] = RATIOS

    def check(self, plan: Plan) -> Plan:
        """The plan itself; `GnnlabError` names the rule that it breaks."""
        expected = 1
        for block in plan.blocks:
            if block.first != expected:
                raise GnnlabError(f"plan {plan}: stage {expected} should come next, a block starts with {block.first}")
            expected = block.last + 1
        if expected != self.stages + 1:
            raise GnnlabError(f"plan {plan}: it ends with stage {expected - 1}, the layer has {self.stages}")
        for unit in plan.units:
            if unit not in self.units:
                raise GnnlabError(f"plan {plan}: unit {unit!r} is unknown; there are {', '.join(self.units)}")
        twice = sorted({u for u in plan.units if plan.units.count(u) > 1})
        if twice:
            raise GnnlabError(f"plan {plan}: {', '.join(twice)} stands in two places; a unit runs one block")
        for block in plan.blocks:
            if block.shared and set(block.units) not in self.sharing:
                may = " or ".join("+".join(sorted(pair)) for pair in self.sharing) or "none"
                raise GnnlabError(f"plan {plan}: {'+'.join(block.units)} may not share a graph; {may} may")
            for unit in block.units:
                if barred := sorted(set(block.stages).intersection(self.unable.get(unit, ()))):
                    raise GnnlabError(f"plan {plan}: {unit} cannot run stage {', '.join(map(str, barred))}")
        return plan

    def candidates(self, *, max_blocks: int = 2, one_unit: bool = False) -> list[Plan]:
        """Every legal plan of at most `max_blocks` blocks, those of a single unit only with `one_unit`."""
        pairs = [pair for pair in combinations(self.units, 2) if set(pair) in self.sharing]
        groups = [*((unit,) for unit in self.units), *pairs]
        plans = []
        for count in range(1, min(max_blocks, self.stages, len(self.units)) + 1):
            for chosen in permutations(groups, count):
                units = [unit for group in chosen for unit in group]
                if len(set(units)) == len(units) and (one_unit or len(units) > 1):
                    plans += self._cut(chosen)
        return plans

    def _cut(self, groups: Sequence[tuple[str, ...]]) -> Iterator[Plan]:
        """These groups in this order, with every cut between them and every ratio."""
        splits = [[(r, round(1 - r, 10)) for r in self.ratios] if len(group) > 1 else [(1.0,)] for group in groups]
        for cuts in combinations(range(1, self.stages), len(groups) - 1):
            spans = list(zip((1, *(cut + 1 for cut in cuts)), (*cuts, self.stages), strict=True))
            if any(
                not set(self.unable.get(unit, ())).isdisjoint(range(first, last + 1))
                for group, (first, last) in zip(groups, spans, strict=True)
                for unit in group
            ):
                continue
            for ratios in product(*splits):
                yield Plan(tuple(Block(g, *s, r) for g, s, r in zip(groups, spans, ratios, strict=True)))
