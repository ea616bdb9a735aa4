"""The fast model as a module to read, to change and to use as module:factory in place of the user's own.

It imports their factory and applies the steps that were kept, each with what it brought.
"""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from gnnlab.errors import GnnlabError
from gnnlab.files import write_atomically
from gnnlab.measure.estimates import Estimate
from gnnlab.optimize.equivalence import ALLOWED, INPUTS
from gnnlab.optimize.search import Optimized
from gnnlab.optimize.steps import FAST_LAYERS, STEPS

_WIDTH = 110
_BY = "written by `gnnlab optimize`"

_MODULE = '''"""{head}
"""

from {module} import {factory} as original

from gnnlab.optimize import steps


def make(data, **options):
    """The fast model; it is tried once on `data`, a PyG graph or other inputs. Its state_dict is that of `original`."""
    model, batch = steps.yours(original, data, options{device})
{steps}
    return model
'''


def check(spec: str, path: Path) -> None:
    """Can the fast form of `spec` be written to `path`? To be asked before it is searched for.

    Raises:
        GnnlabError: Python cannot import that name, its folder is missing, or another file is there.
    """
    if path.suffix != ".py" or not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise GnnlabError(f"{path} cannot be imported as a module; write a name such as fast_model.py")
    if path.stem == spec.partition(":")[0]:
        raise GnnlabError(f"{path} is the module of the model itself; write to another file")
    if not path.parent.is_dir():
        raise GnnlabError(f"{path}: there is no folder {path.parent}; make it first")
    if path.exists() and (not path.is_file() or _BY not in path.read_text(encoding="utf-8", errors="replace")):
        raise GnnlabError(f"{path} is there and was not written by gnnlab optimize; write to another file")


def write(report: Optimized, path: Path) -> None:
    """Write the module of a report whole or not at all; one that was written before is replaced.

    Raises:
        GnnlabError: the report has no step to apply, or `check` refuses the path.
    """
    if not report.plan:
        raise GnnlabError(f"nothing of what was tried makes {report.spec} faster: {path} was not written")
    check(report.spec, path)
    text = module_text(report)
    write_atomically(path, lambda file: file.write(text))


def module_text(report: Optimized) -> str:
    """The source of the module."""
    module, _, factory = report.spec.rpartition(":")
    lines = "\n".join(_steps(report))
    device = "" if report.device is None else f", {report.device!r}"
    parts = {"module": module, "factory": factory, "device": device, "steps": lines}
    return _MODULE.format(head="\n".join(_head(report)), **parts)


def gain_text(gain: Estimate) -> str:
    """ "2.31 (2.25 to 2.37)" """
    return f"{gain.value:.3g}" + ("" if gain.low is None else f" ({gain.low:.3g} to {gain.high:.3g})")


def result(report: Optimized) -> Iterator[str]:
    """Gain, time, memory and proof of a report that has a plan, a sentence each."""
    ms, held, proof = report.ms, report.memory_mib, report.proof
    where = "in one process" if report.processes == 1 else f"over {report.processes} processes"
    if report.gain.low is not None and report.gain.low <= 1:
        where += f", clearly in {report.clear} of them"
    yield f"{' + '.join(report.plan)}: {gain_text(report.gain)} times as fast {where}."
    call = "a forward and backward pass (dropout at 0)" if report.train else "a forward pass in eval mode"
    yield f"Time of {call}: {ms['yours']:.3g} ms before, {ms['fast']:.3g} ms now."
    yield f"Memory at its peak, beside model and inputs: {held['yours']:.3g} MiB before, {held['fast']:.3g} MiB now."
    what = "outputs and gradients" if report.train else "outputs"
    also = ", and each fast layer on drawn graphs" if INPUTS in proof["held"] and FAST_LAYERS in report.plan else ""
    yield (
        f"Proven equal on {'; '.join(proof['held'])}{also}: {what} differ by {proof['error']:.1e} relative, allowed is "
        f"{ALLOWED:.0e}."
    )
    for graph, why in proof["skipped"].items():
        yield f"Your model does not take {graph}: {why}."


def _head(report: Optimized) -> Iterator[str]:
    facts = report.facts
    yield f"{report.spec} made faster, and proven equal: {_BY}, {date.today().isoformat()}."
    yield ""
    on = f"Graph: {report.graph}, {facts['nodes']:,} nodes, {facts['edges']:,} edges."
    busy = f" It was busy: {facts['busy']}." if facts["busy"] else ""
    on_card = f"{facts['device']}, float32 products: {facts['float32_products']}; " if "device" in facts else ""
    machine = (
        f"Machine: {on_card}{facts['processor']}, {facts['cores']} cores, threads of torch: {facts['threads']}.{busy}"
    )
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    for sentence in (*result(report), on, machine, f"Versions: {versions}."):
        yield from textwrap.wrap(sentence, _WIDTH, subsequent_indent="    ")


def _steps(report: Optimized) -> Iterator[str]:
    """The calls of the plan; what changes results as a comment, for the reader to decide."""
    tried = {step.name: step for step in report.tried}
    for name in report.plan:
        yield from _comment(f"{name} ({tried[name].why}): {gain_text(tried[name].gain)} times as fast as before it")
        yield f"    model = {STEPS[name].code}"
    for step in report.tried:
        if not STEPS[step.name].exact and step.gain and step.gain.value > 1:
            gain = f"{gain_text(step.gain)} times as fast, error {step.error:.1e}"
            yield from _comment(f"not applied, for it changes results: {gain}")
            yield f"    # model = {STEPS[step.name].code}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")
