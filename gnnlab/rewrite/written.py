"""The fast model as a module to read, to change and to use as module:factory in place of the user's own.

It imports their factory and applies the steps that were kept, each with what it brought and could bring at most.
"""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from gnnlab.errors import GnnlabError
from gnnlab.files import write_atomically
from gnnlab.profiling.estimates import Estimate
from gnnlab.rewrite.optimize import Optimized, Tried
from gnnlab.rewrite.proof import ALLOWED
from gnnlab.rewrite.steps import GUARD, STEPS

_WIDTH = 110
_BY = "written by `gnnlab optimize`"

_MAKE = '''
from {module} import {factory} as original

from gnnlab.rewrite import steps


def make(data, **options):
    """The fast model; `data` is the PyG graph that it is tried on once. Its state_dict is that of `original`."""
    model, batch = steps.yours(original, data, options)
{steps}
    return model
'''


def check(spec: str, path: Path) -> None:
    """Can the fast form of `spec` be written to `path`? To be asked before it is searched for.

    Raises:
        GnnlabError: the name is none that Python can import, its folder is not there, or a file of someone's is.
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
        GnnlabError: nothing was kept, `check` refuses the path, or the disk does.
    """
    path = Path(path)
    if not report.plan:
        raise GnnlabError(f"nothing of what was tried makes {report.spec} faster: {path} was not written")
    check(report.spec, path)
    text = module_text(report)
    write_atomically(path, lambda file: file.write(text))


def module_text(report: Optimized) -> str:
    """The source of the module."""
    module, _, factory = report.spec.rpartition(":")
    lines = [line for name in report.plan for line in _step(report, name)]
    body = _MAKE.format(module=module, factory=factory, steps="\n".join(lines))
    head = "\n".join(_head(report))
    rest = "".join(f"{line}\n" for line in _left_out(report))
    return f'"""{head}\n"""\n{body}{rest}'


def gain_text(gain: Estimate | None) -> str:
    """ "2.31 (2.25 to 2.37) times"; "not measured" where there is none."""
    if gain is None:
        return "not measured"
    interval = "" if gain.low is None else f" ({gain.low:.3g} to {gain.high:.3g})"
    return f"{gain.value:.3g}{interval} times"


def _head(report: Optimized) -> Iterator[str]:
    facts, what = (
        report.facts,
        "forward and backward pass, dropout at 0" if report.train else "forward pass in eval mode",
    )
    yield f"{report.spec} made faster, and proven equal: {_BY}, {date.today().isoformat()}."
    yield ""
    yield f"graph      {report.graph}, {facts['nodes']:,} nodes, {facts['edges']:,} edges"
    yield f"measured   {what}: {report.ms['yours']:.3g} ms before, {report.ms['fast']:.3g} ms now"
    yield f"gain       {gain_text(report.gain)}, 95 % interval over {report.processes} processes and their rounds"
    if facts.get("limit_ms"):
        yield f"limit      the operators of the model as it was take {facts['limit_ms']:.3g} ms at least (roofline)"
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] > 1)} of torch"
    yield f"machine    {facts['processor']}, {facts['cores']} cores, {threads}"
    if facts["busy"]:
        yield f"           busy: {facts['busy']}"
    yield from _folded("versions   ", ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    yield from _folded("equal on   ", "; ".join(report.proof["held"]))
    gradients = " and the gradient of each parameter, dropout at 0," if report.train else ""
    yield f"           outputs{gradients} differ by {report.proof['error']:.1e} relative, allowed is {ALLOWED:.0e}"
    for name, what in (("wrong", "wrong on"), ("refused", "refuses"), ("skipped", "not asked")):
        if report.proof[name]:
            yield from _folded(f"{what:11}", "; ".join(f"{graph}: {why}" for graph, why in report.proof[name].items()))


def _step(report: Optimized, name: str) -> Iterator[str]:
    if name == GUARD:
        yield from _comment("this size only: of other sizes the form is wrong")
    else:
        found = next(tried for tried in report.tried if tried.name == name)
        yield from _comment(f"{name} ({found.why}): {_brought(found)}")
    yield f"    model = {STEPS[name].code}"


def _brought(found: Tried) -> str:
    parts = [f"{gain_text(found.gain)} as fast alone"]
    if found.without is not None:
        parts.append(f"the rest without it takes {gain_text(found.without)} the time")
    if found.most is not None:
        touched = 100 * (1 - 1 / found.most)
        parts.append(f"what it touches takes {touched:.0f} % of a forward pass, so at most {found.most:.3g} times")
    if found.once_s is not None and found.once_s >= 1:
        parts.append(f"{found.once_s:.0f} s at the first call")
    return "; ".join(parts)


def _left_out(report: Optimized) -> Iterator[str]:
    """What changes results, and is for the reader to decide."""
    measured = [tried for tried in report.tried if not tried.exact and tried.gain and tried.gain.value > 1]
    if measured:
        yield ""
        yield ""
        yield "# Not applied, for it changes results; as a line before `return model`:"
    for tried in measured:
        base, gain = ("yours", tried.gain) if tried.beside is None else ("this model", tried.beside)
        yield f"# model = {STEPS[tried.name].code}  # {gain_text(gain)} as fast as {base}, error {tried.error:.1e}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")


def _folded(label: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=" " * len(label))
