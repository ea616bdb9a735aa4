"""What there is to run: the repository, its notebooks in the order of their numbers, and its parameter sets.

A notebook builds on others before it alone. It says in its metadata what it needs and how long it may take at most:

    "gnnlab": {"needs": ["04"], "timeout_minutes": 10}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError, meant

from . import parameters
from .parameters import Parameter

TIMEOUT_MINUTES = 60.0


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

    def parameters_in(self, folder: Path) -> Path:
        """Its file in the folder of a parameter set."""
        return folder / f"{self.name}.yaml"

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
    """Check everything that is asked for. Raises `GnnlabError`, one line."""
    base = root()
    every = notebooks(base)
    chosen, params = select(every, numbers), parameter_set(params_set, base)
    given = read_parameters(every, chosen, params, overrides)
    return Request(base, every, chosen, params, given, output_folder(params, given.values(), base))


def root() -> Path:
    """The repository: the first folder at or above the working directory, else above this package, that holds
    `notebooks/` and `params/`. Raises `GnnlabError` when there is none.
    """
    start = Path.cwd()
    for folder in (start, *start.parents, *Path(__file__).resolve().parents):
        if (folder / "notebooks").is_dir() and (folder / "params").is_dir():
            return folder
    raise GnnlabError(
        f"no folder at or above {start} holds notebooks/ and params/; change to a copy of the gnnlab repository, which "
        "notebooks need (swap, optimize, profile, check, units, infer and serve work anywhere)"
    )


def notebooks(root: Path) -> dict[str, Notebook]:
    """Every `notebooks/NN_name.ipynb` by its number, in order. Raises `GnnlabError`."""
    every: dict[str, Notebook] = {}
    for notebook in map(_notebook, sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))):
        if other := every.get(notebook.number):
            raise GnnlabError(f"{notebook.name}.ipynb and {other.name}.ipynb have the same number")
        if lacking := [number for number in notebook.needs if number not in every]:
            raise GnnlabError(f"{notebook.name} needs {lacking[0]}, and there is no such notebook before it")
        every[notebook.number] = notebook
    return every


def select(notebooks: dict[str, Notebook], wanted: Sequence[str]) -> list[Notebook]:
    """The wanted ones ("01", "1", "01_profile_bottlenecks"; none: all), in order."""
    numbers = {_number(word, notebooks) for word in wanted} if wanted else set(notebooks)
    if not numbers:
        raise GnnlabError("there are no notebooks in notebooks/; they are named NN_name.ipynb")
    return [notebook for number, notebook in notebooks.items() if number in numbers]


def parameter_set(wanted: str, root: Path) -> Path:
    """The folder of a set, of YAML files named as the notebooks: `params/<wanted>`, or one of the user's own by its
    path. Raises `GnnlabError` when there is neither.
    """
    known = sorted(folder.name for folder in (root / "params").iterdir() if folder.is_dir())
    if wanted in known:
        return root / "params" / wanted
    folder = Path(wanted).expanduser().resolve()
    if wanted and folder.is_dir():
        if not any(folder.glob("*.y*ml")):
            raise GnnlabError(f"--params {folder} holds no parameter file (*.yaml); sets are {', '.join(known)}")
        return folder
    raise GnnlabError(f"there is no parameter set or folder {wanted!r}; sets are {', '.join(known)}")


def read_parameters(
    every: Mapping[str, Notebook], chosen: Sequence[Notebook], folder: Path, overrides: Sequence[tuple[str, str]] = ()
) -> dict[str, dict[str, Any] | None]:
    """The parameters that a set's files and the command line give each chosen notebook, by its name, checked; None
    where the set has no file for it.

    `overrides` are (name, text) pairs; each goes to the notebooks that declare it. Files that belong to none of `every`
    notebook are refused: they would be ignored otherwise. Raises `GnnlabError`.
    """
    names = [f"{notebook.name}.yaml" for notebook in every.values()]
    for file in sorted(folder.glob("*.y*ml")):
        if file.name not in names:
            raise GnnlabError(f"{file} belongs to no notebook{meant(file.name, names)}")
    known = {name: parameter for notebook in chosen for name, parameter in notebook.declared.items()}
    for place, (name, _) in enumerate(overrides):
        if name not in known:
            raise GnnlabError(f"-p {name}: {parameters.unknown(name, known)}")
        if name in dict(overrides[:place]):
            raise GnnlabError(f"-p {name} is given twice")
    given: dict[str, dict[str, Any] | None] = dict.fromkeys(notebook.name for notebook in chosen)
    for notebook in chosen:
        file, schema = notebook.parameters_in(folder), notebook.declared
        if file.exists():
            values = parameters.load_yaml(file)
            try:
                parameters.check(values, schema)
            except GnnlabError as error:
                raise GnnlabError(f"{file}: {error}") from None
            values |= {name: parameters.parse(text, schema[name]) for name, text in overrides if name in schema}
            checked = parameters.check(values, schema)
            given[notebook.name] = {name: checked[name] for name in values}
    return given


def output_folder(params: Path, given: Iterable[Mapping[str, Any] | None], root: Path) -> Path:
    """Where the results of the set in the folder `params` go: the `output_dir` that is `given` (relative to the
    repository), else `outputs/<set>`. Raises `GnnlabError` when several are given, or none and a set of that name
    belongs to the repository.
    """
    named = {values.get("output_dir") for values in given if values is not None} or {None}
    if len(named) > 1:
        raise GnnlabError(f"the parameters of {params} name different output_dir; one run has one folder")
    if (name := named.pop()) is not None:
        folder = (root / name).resolve()
        if folder.is_file():
            raise GnnlabError(f"output_dir {name!r} is a file; it must be a folder for results")
        if folder in (root, *root.parents):
            raise GnnlabError(f"output_dir {name!r} holds the repository; it must be a folder for results alone")
        return folder
    if params != root / "params" / params.name and (root / "params" / params.name).is_dir():
        raise GnnlabError(
            f"outputs/{params.name} belongs to params/{params.name}; rename {params} or give -p output_dir"
        )
    return root / "outputs" / params.name


def _notebook(path: Path) -> Notebook:
    try:
        about = json.loads(path.read_bytes())["metadata"].get("gnnlab", {})
        notebook = Notebook(path, tuple(about.get("needs", ())), float(about.get("timeout_minutes", TIMEOUT_MINUTES)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise GnnlabError(f"{path} is not a notebook, or its metadata 'gnnlab' is not as it should be") from None
    if not notebook.timeout_minutes > 0:
        raise GnnlabError(f"{path}: timeout_minutes is {notebook.timeout_minutes}; it must be above 0")
    return notebook


def _number(word: str, notebooks: Mapping[str, Notebook]) -> str:
    stem = Path(word).stem
    for number, notebook in notebooks.items():
        if stem in (number, number.removeprefix("0"), notebook.name):
            return number
    known = ", ".join(notebook.name for notebook in notebooks.values()) or "none"
    raise GnnlabError(f"there is no notebook {word!r}; there are: {known}")
