"""What there is to run: the repository, its ten notebooks in the order of their numbers, and its parameter sets.

A notebook builds on others before it alone. It says in its metadata what it needs and how long it may take at most:

    "gnnlab": {"needs": ["04"], "timeout_minutes": 10}
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError, meant

from . import parameters
from .parameters import Parameter

NAMES = (  # whatever else lies in notebooks/ (copies, drafts, executed notebooks) is the user's
    *("01_profile_bottlenecks", "02_optimize_gnn", "03_fm_amp_training", "04_stage_export", "05_npu_measure"),
    *("06_bandwidth_analysis", "07_plan_execution", "08_optimize_inference", "09_your_model", "10_serve_inference"),
)
TIMEOUT_MINUTES = 60.0
LAB, QUICK = "outputs/lab", "outputs/quick"  # below the repository: the default of each notebook, and of `gnnlab run`


@dataclass(frozen=True)
class Notebook:
    """A notebook of the repository: `number` is "01", `name` is "01_profile_bottlenecks"."""

    path: Path
    needs: tuple[str, ...] = ()
    timeout_minutes: float = TIMEOUT_MINUTES

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name[:2]

    @cached_property
    def declared(self) -> dict[str, Parameter]:
        """The parameters that it declares; raises as `parameters.declared`."""
        return parameters.declared(self.path)


@dataclass(frozen=True)
class Request:
    """What somebody wants to run: `chosen` notebooks of `every` one, with what the set in the folder `params` and the
    command line give each, by its name (None where the set has no file for it), into `folder`.
    """

    root: Path
    every: dict[str, Notebook]
    chosen: list[Notebook]
    params: Path
    given: dict[str, dict[str, Any] | None]
    folder: Path

    def values(self, notebook: Notebook) -> dict[str, Any]:
        """Every parameter of a notebook, and where its results go."""
        below = self.folder.is_relative_to(self.root)
        folder = self.folder.relative_to(self.root) if below else self.folder
        given = {**(self.given[notebook.name] or {}), "output_dir": folder.as_posix()}
        return parameters.check(given, notebook.declared)


def request(numbers: Sequence[str], params_set: str, overrides: Sequence[tuple[str, str]] = ()) -> Request:
    """Check everything that is asked for: notebooks by number (none: all), a parameter set, and (name, text) pairs,
    each for the notebooks that declare it. Raises `GnnlabError`, one line.

    Results go to the `output_dir` that the parameters give (relative to the repository), else to `outputs/<set>`.
    """
    base = root()
    every = notebooks(base)
    chosen, params = select(every, numbers), parameter_set(params_set, base)
    given = _given(every, chosen, params, dict(overrides))
    named = {values.get("output_dir") for values in given.values() if values is not None} or {None}
    if len(named) > 1:
        raise GnnlabError(f"the parameters of {params} name different output_dir; one run has one folder")
    return Request(base, every, chosen, params, given, output_folder(base, named.pop() or f"outputs/{params.name}"))


def output_folder(root: Path, output_dir: str) -> Path:
    """The folder that a parameter `output_dir` names: below the repository unless it is absolute or begins with ~."""
    return (root / os.path.expanduser(output_dir)).resolve()  # noqa: PTH111  Path's raises where there is no home


def results_of(params_set: str) -> Path:
    """The folder of the results of a parameter set. Raises `GnnlabError` where nothing has been run with it."""
    folder = request((), params_set).folder
    if not folder.is_dir():
        raise GnnlabError(f"there are no results in {folder}; run gnnlab run --params {params_set} first")
    return folder


def root() -> Path:
    """The repository: the first folder at or above the working directory, else above this package, with the first
    notebook and `params/quick`. Raises `GnnlabError` when there is none.
    """
    start = Path.cwd()
    for folder in (start, *start.parents, *Path(__file__).resolve().parents):
        if (folder / "notebooks" / f"{NAMES[0]}.ipynb").is_file() and (folder / "params/quick").is_dir():
            return folder
    raise GnnlabError(
        f"no folder at or above {start} holds notebooks/{NAMES[0]}.ipynb and params/quick; change to a copy of the "
        "gnnlab repository, which notebooks need (swap, optimize, profile, check, units, infer and serve work anywhere)"
    )


def notebooks(root: Path) -> dict[str, Notebook]:
    """The notebooks of `NAMES` that are there, by their numbers, in order. Raises `GnnlabError`."""
    every: dict[str, Notebook] = {}
    for path in [root / "notebooks" / f"{name}.ipynb" for name in NAMES]:
        if path.exists():
            about = parameters.notebook(path)["metadata"].get("gnnlab", {})
            limit = about.get("timeout_minutes", TIMEOUT_MINUTES)
            every[path.name[:2]] = Notebook(path, tuple(about.get("needs", ())), limit)
    return every


def select(notebooks: Mapping[str, Notebook], wanted: Sequence[str]) -> list[Notebook]:
    """The wanted ones ("01", "1", "01_profile_bottlenecks"; none: all), in order. Raises `GnnlabError`."""
    by_name = {name: one for one in notebooks.values() for name in (one.number, one.number.lstrip("0"), one.name)}
    chosen = [by_name.get(Path(word).stem) for word in wanted or notebooks]
    if None in chosen:
        known = ", ".join(notebook.name for notebook in notebooks.values()) or "none"
        raise GnnlabError(f"there is no notebook {wanted[chosen.index(None)]!r}; there are: {known}")
    return [notebook for notebook in notebooks.values() if notebook in chosen]


def parameter_set(wanted: str, root: Path) -> Path:
    """The folder of a set, of YAML files named as the notebooks: `params/<wanted>`, or one of the user's own by its
    path. Raises `GnnlabError` when there is neither.
    """
    known = sorted(folder.name for folder in (root / "params").iterdir() if folder.is_dir())
    folder = root / "params" / wanted if wanted in known else output_folder(Path.cwd(), wanted)
    if not any(folder.glob("*.yaml")) or not wanted:
        raise GnnlabError(
            f"there is no parameter set {wanted!r}, nor a folder with *.yaml; sets are {', '.join(known)}"
        )
    return folder


def _given(
    every: Mapping[str, Notebook], chosen: Sequence[Notebook], folder: Path, overrides: Mapping[str, str]
) -> dict[str, dict[str, Any] | None]:
    """The parameters that the files of a set, then the command line, give each chosen notebook, by its name, checked;
    None where the set has no file for it. Files that belong to no notebook would be ignored: they are refused.
    """
    names = [f"{notebook.name}.yaml" for notebook in every.values()]
    for file in sorted(folder.glob("*.y*ml")):
        if file.name not in names:
            raise GnnlabError(f"{file} belongs to no notebook{meant(file.name, names)}")
    known = {name: parameter for notebook in chosen for name, parameter in notebook.declared.items()}
    for name in overrides:
        if name not in known:
            raise GnnlabError(f"-p {name}: {parameters.unknown(name, known)}")
    given: dict[str, dict[str, Any] | None] = dict.fromkeys(notebook.name for notebook in chosen)
    for notebook in chosen:
        file, schema = folder / f"{notebook.name}.yaml", notebook.declared
        if file.exists():
            own = {name: parameters.parse(text, schema[name]) for name, text in overrides.items() if name in schema}
            given[notebook.name] = parameters.read(file, schema) | own
    return given
