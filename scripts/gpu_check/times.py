"""Times: variants of a layer in turns, their peak memory, and CUDA graphs of them."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .cases import Case, free_memory, one_line, synchronize
from .checks import deviation
from .rows import LEAST_ROUNDS, estimate, finite, gain

ROUNDS = 12
CELL_S = 1.5  # of timing, for each layer, size and mode, if that gives six rounds
SAMPLE_MS = 4.0  # a sample is as many calls as take about this long


class Clock:
    """Times a call: ms, by events on a GPU and by the wall clock on a CPU. Made, it has called twice to warm up."""

    def __init__(self, call: Callable[[], Any], device: str) -> None:
        self.call, self.device, self.calls = call, device, 1
        call(), call()
        once = min(self.ms(), self.ms())
        if device == "cuda":
            self.calls = min(50, max(1, int(SAMPLE_MS / max(once, 1e-3))))

    def ms(self) -> float:
        """ms of a call, the mean over `calls` calls in a row."""
        if self.device == "cpu":
            start = time.perf_counter()
            for _ in range(self.calls):
                self.call()
            return 1e3 * (time.perf_counter() - start) / self.calls
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(self.calls):
            self.call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / self.calls


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's garbage collector waits, so that it is in no sample."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def in_turns(clocks: dict[str, Clock]) -> tuple[dict[str, list[float]], dict[str, str]]:
    """(ms of every round, why one broke), by name. Each round asks every clock once; who begins rotates."""
    times: dict[str, list[float]] = {name: [] for name in clocks}
    broken: dict[str, str] = {}
    with no_collection():
        start = time.monotonic()
        for nth in range(ROUNDS):
            names = [name for name in clocks if name not in broken]
            first = nth % max(1, len(names))
            for name in names[first:] + names[:first]:
                try:
                    times[name].append(float(f"{clocks[name].ms():.5g}"))
                except Exception as problem:
                    broken[name] = one_line(problem)
            spent = time.monotonic() - start
            if nth + 1 >= LEAST_ROUNDS and spent * (nth + 2) / (nth + 1) > CELL_S:
                break
    return times, broken


def peak_mib(call: Callable[[], Any], device: str) -> float | None:
    """MiB that torch's allocator gave at the peak of a call, above what was there; None on a CPU."""
    if device == "cpu":
        return None
    synchronize(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    synchronize(device)
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 2)


def race(case: Case, mode: str, variants: dict[str, Callable[[Tensor], Tensor]], part: str) -> list[dict]:
    """Rows of one layer, size and mode: each variant's times in the same rounds, its peak memory, its difference."""
    rows, clocks, expected, device = {}, {}, None, case.x.device.type
    for name, variant in variants.items():
        row = rows[name] = {"part": part} | case.key() | {"mode": mode, "variant": name}
        try:
            call = case.call(variant, mode)
            out = case.call(variant, "forward")()[0]
            expected = out if name == "PyG" else expected
            if expected is not None:
                scale = max(float(expected.abs().max()), 1e-30)
                row["difference"] = finite(float((out.double() - expected).abs().max()) / scale)
            del out
            call()
            row["peak_mib"] = peak_mib(call, device)
            clocks[name] = Clock(call, device)
        except Exception as problem:
            row["why"] = one_line(problem)
        if "why" in row:
            free_memory(device)
    del expected
    times, broken = in_turns(clocks)
    for name, clock in clocks.items():
        if name in broken:
            rows[name]["why"] = broken[name]
        else:
            rows[name] |= estimate(times[name]) | {"calls": clock.calls, "rounds_ms": times[name]}
    return list(rows.values())


def capture(call: Callable[[], list]) -> tuple[torch.cuda.CUDAGraph, list]:
    """`call` as a CUDA graph, and the tensors that each replay writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = call()
    return graph, written


def check_capture(case: Case, call: Callable[[], list], graph: torch.cuda.CUDAGraph, written: list) -> dict:
    """Compare a replay with the plain call, after its tensors were made NaN and x got other numbers."""
    with torch.no_grad():
        case.x.copy_(case.x.roll(1, 0))
        for tensor in (one for one in written if one is not None):
            tensor.fill_(math.nan)
    plain = call()
    graph.replay()
    synchronize(case.x.device.type)
    names = ["output", "x", *(name for name, _ in case.layer.named_parameters())][: len(plain)]
    exact = [None if one is None else one.double() for one in plain]
    found = deviation(written, exact, plain, names, case.dtype)
    same = all(one is other or torch.equal(one, other) for one, other in zip(written, plain, strict=True))
    return {key: found[key] for key in ("error", "allowed", "of", "wrong")} | {"bit_equal": same}


def captured_rows(case: Case, mode: str) -> list[dict]:
    """Rows of swap's model and of PyG's: kernel by kernel and captured, in the same rounds."""
    rows, clocks, alive, device = {}, {}, [], case.x.device.type
    for variant, model in (("swap", case.faster), ("PyG", case.own)):
        row = rows[variant] = case.key() | {"mode": mode, "variant": variant}
        call = case.call(model, mode)
        try:
            graph, written = capture(call)
            row |= check_capture(case, call, graph, written)
            clocks[variant, "captured"] = Clock(graph.replay, device)
            alive.append((graph, written))
        except Exception as problem:
            row["why"] = one_line(problem)
            synchronize(device)
        clocks[variant, "plain"] = Clock(call, device)
    times, _ = in_turns(clocks)
    for variant, row in rows.items():
        row |= {"rounds_ms": times[variant, "plain"]} | estimate(times[variant, "plain"])
        if (variant, "captured") in times:
            row["captured_rounds_ms"] = times[variant, "captured"]
            row["captured"] = estimate(times[variant, "captured"])
            row["gain"] = gain({"rounds_ms": times[variant, "captured"]}, [row])
    return list(rows.values())
