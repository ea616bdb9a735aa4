"""Parallel execution plans: which device runs which stages. Their notation, what is legal, and every candidate.

    plan = parse("1-5 on CPU and GPU (0.5, 0.5), 6-7 on NPU")
    str(plan)     # [[["CPU","GPU"],[1,2,3,4,5],[0.5,0.5]],[["NPU"],[6,7]]], which `parse` reads, too
    space = Space(devices=("CPU", "GPU", "NPU"), unable={"NPU": {3, 4}}, ratios=(0.5,))
    space.check(plan)             # GnnlabError names the rule that a plan breaks
    len(space.candidates())       # 28

The list notation is S4's: blocks [devices, stages, ratios]. Several devices of a block share each graph in these ratios
(data parallelism). The rules: blocks are contiguous and cover every stage once, in order; a device stands in one block
only; only devices that may share do; no device gets a stage that it cannot run.
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

RATIOS = (0.3, 0.5, 0.7)  # parts of a graph that the first of two devices may take
_EXAMPLE = 'write it as 1-5 on CPU, 6-7 on NPU, or as [[["CPU"],[1,2,3,4,5]],[["NPU"],[6,7]]]'
_NUMBERS = r"\d*\.?\d+(?:, ?\d*\.?\d+)*"
_BLOCK = re.compile(rf"(\d{{1,2}})(?:-(\d{{1,2}}))? on ([^,()\s]+(?: and [^,()\s]+)*)(?: \(({_NUMBERS})\))?(?:, |$)")


@dataclass(frozen=True)
class Block:
    """Stages `first` to `last` on one device, or on several that share each graph in the parts `ratios`."""

    devices: tuple[str, ...]
    first: int
    last: int
    ratios: tuple[float, ...] = (1.0,)

    @property
    def stages(self) -> range:
        return range(self.first, self.last + 1)

    @property
    def shared(self) -> bool:
        return len(self.devices) > 1


@dataclass(frozen=True)
class Plan:
    """Blocks in the order of their stages. `str(plan)` is S4's notation."""

    blocks: tuple[Block, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device for block in self.blocks for device in block.devices)

    def __str__(self) -> str:
        blocks = [[b.devices, list(b.stages), b.ratios][: 3 if b.shared else 2] for b in self.blocks]
        return json.dumps(blocks, separators=(",", ":"))

    def words(self) -> str:
        """For a reader: "1-5 on CPU and GPU (0.5, 0.5), 6-7 on NPU"."""
        parts = []
        for block in self.blocks:
            stages = f"{block.first}-{block.last}" if block.last > block.first else f"{block.first}"
            ratios = f" ({', '.join(f'{r:g}' for r in block.ratios)})" if block.shared else ""
            parts.append(f"{stages} on {' and '.join(block.devices)}{ratios}")
        return ", ".join(parts)


def parse(text: str | Sequence) -> Plan:
    """A plan from words ("1-5 on CPU, 6-7 on NPU") or the list notation, as text (JSON, Python) or as nested lists.
    Raises `GnnlabError`: neither of these. Which rules a plan keeps is asked of `Space.check`.
    """
    given = _read(text.strip()) if isinstance(text, str) else text
    if not isinstance(given, (list, tuple)) or not given:
        raise GnnlabError(f"plan {quoted(text)} is not understood; {_EXAMPLE}")
    return Plan(tuple(map(_block, given)))


def _read(text: str) -> object:
    """Blocks as lists; None where the text is no plan."""
    if text.startswith("["):
        try:
            return ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return None
    blocks, parts = [], list(_BLOCK.finditer(text))
    for first, last, devices, ratios in (part.groups() for part in parts):
        stages = list(range(int(first), int(last or first) + 1))
        blocks.append([devices.split(" and "), stages, *([list(map(float, ratios.split(",")))] if ratios else [])])
    return blocks if "".join(part[0] for part in parts) == text else None


def _block(entry: Any) -> Block:
    """A block of the list notation."""
    try:
        devices, stages, ratios = entry if len(entry) == 3 else (*entry, [1.0])
        right = (
            all(isinstance(device, str) and device for device in devices)
            and list(stages) == list(range(stages[0], stages[0] + len(stages)))
            and len(ratios) == len(devices)
            and all(0 < ratio <= 1 for ratio in ratios)
            and math.isclose(sum(ratios), 1, abs_tol=1e-5)
        )
    except (TypeError, ValueError, IndexError):
        right = False
    if not right:
        raise GnnlabError(
            f'block {quoted(entry)} is no [devices, stages, ratios], as [["CPU","GPU"],[1,2,3],[0.5,0.5]]: names; '
            "numbers that rise by one; and for several devices a ratio each, above 0, that add up to 1"
        )
    return Block(tuple(devices), stages[0], stages[-1], tuple(map(float, ratios)))


@dataclass(frozen=True)
class Space:
    """The plans that a machine allows.

    `unable` holds the stages that a device cannot run, `sharing` the pairs of devices that may share a graph, `ratios`
    the part of the first of a pair (1 - ratio is the other's).
    """

    devices: tuple[str, ...]
    stages: int = 7
    unable: Mapping[str, Iterable[int]] = field(default_factory=dict)
    sharing: tuple[frozenset[str], ...] = (frozenset({"CPU", "GPU"}),)
    ratios: tuple[float, ...] = RATIOS

    def check(self, plan: Plan) -> Plan:
        """The plan itself; `GnnlabError` names the rule that it breaks."""
        if broken := next(self._broken(plan), None):
            raise GnnlabError(f"plan {plan.words()}: {broken}")
        return plan

    def candidates(self, *, max_blocks: int = 2, one_device: bool = False) -> list[Plan]:
        """Every legal plan of at most `max_blocks` blocks; those of a single device only with `one_device`."""
        groups = [(d,) for d in self.devices] + [p for p in combinations(self.devices, 2) if set(p) in self.sharing]
        plans = []
        for count in range(1, min(max_blocks, self.stages, len(self.devices)) + 1):
            for chosen in permutations(groups, count):
                names = [device for group in chosen for device in group]
                if len(set(names)) == len(names) and (one_device or len(names) > 1):
                    plans += [plan for plan in self._cut(chosen) if not any(self._broken(plan))]
        return plans

    def _cut(self, groups: Sequence[tuple[str, ...]]) -> Iterator[Plan]:
        """These groups in this order, with every cut between them and every ratio."""
        splits = [[(r, round(1 - r, 10)) for r in self.ratios] if len(group) > 1 else [(1.0,)] for group in groups]
        for cuts in combinations(range(1, self.stages), len(groups) - 1):
            spans = list(zip((1, *(cut + 1 for cut in cuts)), (*cuts, self.stages), strict=True))
            for ratios in product(*splits):
                yield Plan(tuple(Block(g, *s, r) for g, s, r in zip(groups, spans, ratios, strict=True)))

    def _broken(self, plan: Plan) -> Iterator[str]:
        """The rules that a plan breaks, in words."""
        expected = 1
        for block in plan.blocks:
            if block.first != expected:
                yield f"stage {expected} should come next, a block starts with {block.first}"
            expected = block.last + 1
        if expected != self.stages + 1:
            yield f"it ends with stage {expected - 1}, the layer has {self.stages}"
        for device in plan.devices:
            if device not in self.devices:
                yield f"device {device!r} is unknown; there are {', '.join(self.devices)}"
            if plan.devices.count(device) > 1:
                yield f"{device} stands in two places; a device runs one block"
        for block in plan.blocks:
            if block.shared and set(block.devices) not in self.sharing:
                may = " or ".join("+".join(sorted(pair)) for pair in self.sharing) or "none"
                yield f"{'+'.join(block.devices)} may not share a graph; {may} may"
            for device in block.devices:
                if barred := sorted(set(block.stages).intersection(self.unable.get(device, ()))):
                    yield f"{device} has no stage {', '.join(map(str, barred))}: it cannot run it, or nobody timed it"
