"""What `gnnlab optimize` says, and the fast model as a module to read, to change and to use as module:factory.

The module imports the user's factory and applies the steps that were kept, each with what it brought.
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
from gnnlab.optimize.search import NOT_SHOWN, OptimizeReport
from gnnlab.optimize.steps import FAST_LAYERS, STEPS

FAR_APART = 20.0  # ends of an interval: a gain between half and ten times says nothing
_WIDTH = 110
_BY = "written by `gnnlab optimize`"

_MODULE = '''"""{head}
"""

from {module} import {factory} as original

from gnnlab.optimize import steps


def make(data, **options):
    """The fast model; it is tried once on `data`, a PyG graph or other inputs. Its state_dict is that of `original`."""
    model, batch = steps.user_model(original, data, options{device})
{steps}
    return model
'''


def check(spec: str, path: Path) -> None:
    """Can the fast variant of `spec` be written to `path`? To be asked before it is searched for.

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


def write(report: OptimizeReport, path: Path) -> None:
    """Write the module of a report whole or not at all; one that was written before is replaced.

    Raises:
        GnnlabError: the report has no step to apply, or `check` refuses the path.
    """
    if not report.plan:
        raise GnnlabError(f"nothing of what was tried makes {report.spec} faster: {path} was not written")
    check(report.spec, path)
    text = module_text(report)
    write_atomically(path, lambda file: file.write(text))


def module_text(report: OptimizeReport) -> str:
    """The source of the module."""
    module, _, factory = report.spec.rpartition(":")
    device = "" if report.device is None else f", {report.device!r}"
    head, lines = "\n".join(_head(report)), "\n".join(_steps(report))
    return _MODULE.format(head=head, module=module, factory=factory, device=device, steps=lines)


def gain_text(gain: Estimate) -> str:
    """ "2.31 (2.25 to 2.37)"; of one whose ends are far apart the middle says nothing."""
    if gain.low is None:
        return f"{gain.value:.3g}, without an interval"
    text = f"{gain.value:.3g} ({gain.low:.3g} to {gain.high:.3g})"
    if not gain.low <= 1 <= gain.high:
        return text
    return "too noisy to tell" if gain.high > FAR_APART * max(gain.low, 1e-12) else f"no difference seen, {text}"


def sentences(report: OptimizeReport) -> list[str]:
    """Gain, time, memory and what was checked, and what was not applied, for a reader."""
    lines = list(_result(report)) if report.plan else []
    if not report.plan:
        may = "; ".join(f"{tried.name}, {gain_text(tried.gain)}" for tried in report.tried if tried.reason == NOT_SHOWN)
        more = f"No gain is beyond the noise. Open, for more --processes or --seconds: {may}."
        lines.append(more if may else "No step was seen to make it faster.")
    if busy := report.facts["busy"]:
        lines.append(f"The machine was busy ({busy}): on a quiet one gains may be others, of threads above all.")
    lines += [
        f"Not applied, as it changes results: {tried.name}, {gain_text(tried.gain)} times as fast, with errors of "
        f"{tried.error:.1e} of the largest output."
        for tried in report.tried
        if tried.error is not None and tried.gain and tried.gain.low is not None and tried.gain.low > 1
    ]
    if why := report.inapplicable.get(FAST_LAYERS):
        lines.append(f"No fast layers: {why}.")
    if count := len(report.inapplicable):
        lines.append(f"{count} step{'s do' if count > 1 else ' does'} not apply to it (--json says why).")
    return lines


def _result(report: OptimizeReport) -> Iterator[str]:
    whole, checked = report.whole, report.checked
    if whole is None:
        yield f"{' + '.join(report.plan)}: not measured as a whole yet; each step's gain stands beside it."
    else:
        count = len(whole.processes)
        where = "within one process" if count == 1 else f"over {count} processes"
        yield f"{' + '.join(report.plan)}: {gain_text(whole.speed)} times as fast {where}."
        call = "a forward and backward pass (dropout at 0)" if report.train else "a forward pass in eval mode"
        yield f"Time of {call}: {whole.before_ms.value:.3g} ms before, {whole.after_ms.value:.3g} ms now."
    if whole and whole.memory:
        peaks = f"before {whole.memory.before}; now {whole.memory.after}"
        yield f"Peak memory beside model and inputs: {peaks}."
    what = "outputs and gradients" if report.train else "outputs"
    also = ", and each fast layer on drawn graphs" if INPUTS in checked["passed"] and FAST_LAYERS in report.plan else ""
    yield (
        f"Checked to be equal on {'; '.join(checked['passed'])}{also}: {what} differ by {checked['error']:.1e} "
        f"relative, allowed is {ALLOWED:.0e}."
    )
    for graph, why in checked["skipped"].items():
        yield f"Your model does not take {graph}: {why}."


def _head(report: OptimizeReport) -> Iterator[str]:
    facts = report.facts
    yield f"{report.spec} made faster, and checked to be equal: {_BY}, {date.today().isoformat()}."
    yield ""
    on = f"Graph: {report.graph}, {facts['nodes']:,} nodes, {facts['edges']:,} edges."
    on_card = f"{facts['device']}, float32 products: {facts['float32_products']}; " if "device" in facts else ""
    machine = f"Machine: {on_card}{facts['processor']}, {facts['cores']} cores, threads of torch: {facts['threads']}."
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    for sentence in (*sentences(report), on, machine, f"Versions: {versions}."):
        yield from textwrap.wrap(sentence, _WIDTH, subsequent_indent="    ")


def _steps(report: OptimizeReport) -> Iterator[str]:
    """The calls of the plan; what changes results as a comment, for the reader to decide."""
    tried = {step.name: step for step in report.tried}
    several = len(report.plan) > 1  # what the only one brought says the head
    for name in report.plan:
        brought = f": {gain_text(tried[name].gain)} times as fast as before it" if several else ""
        yield from _comment(f"{name} ({tried[name].reason}){brought}")
        yield f"    model = {STEPS[name].code}"
    for step in report.tried:
        if not STEPS[step.name].exact and step.gain and step.gain.value > 1:
            gain = f"{gain_text(step.gain)} times as fast, error {step.error:.1e}"
            yield from _comment(f"not applied, for it changes results: {gain}")
            yield f"    # model = {STEPS[step.name].code}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")
