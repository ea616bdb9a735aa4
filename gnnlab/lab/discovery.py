"""What there is to run: the repository, its notebooks in the order of their needs, and its parameter sets.

A notebook says in its metadata what it needs and how long it may take at most:

    "gnnlab": {"needs": ["04"], "timeout_minutes": 10}
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from . import parameters
from .parameters import Parameter

DEFAULT_TIMEOUT_MINUTES = 60.0
_NAME = re.compile(r"(\d\d)_\w+")


class RunnerError(ValueError):
    """A run that cannot be started as it was asked for. The message is one line for the reader."""


@dataclass(frozen=True)
class Notebook:
    """A notebook of the repository: `number` is "01", `name` is "01_profile_bottlenecks"."""

    path: Path
    needs: tuple[str, ...] = ()
    timeout_minutes: float = DEFAULT_TIMEOUT_MINUTES

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.name[:2]


@dataclass(frozen=True)
class ParameterSet:
    """A folder of flat YAML files named as the notebooks: `params/quick`, or a folder of the user's own."""

    name: str
    folder: Path

    def file(self, notebook: Notebook) -> Path:
        return self.folder / f"{notebook.name}.yaml"


def root(start: Path | None = None) -> Path:
    """The repository: the first folder at or above `start` (the working directory), else above this package, that
    holds `notebooks/` and `params/`. Raises `RunnerError` when there is none.
    """
    start = Path(start or Path.cwd()).resolve()
    for folder in (start, *start.parents, *Path(__file__).resolve().parents):
        if (folder / "notebooks").is_dir() and (folder / "params").is_dir():
            return folder
    raise RunnerError(f"no folder at or above {start} holds notebooks/ and params/; change to the gnnlab repository")


def notebooks(root: Path) -> dict[str, Notebook]:
    """Every `notebooks/NN_name.ipynb` by its number, each after those that it needs. Raises `RunnerError`."""
    found: dict[str, Notebook] = {}
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        if not _NAME.fullmatch(path.stem):
            continue
        notebook = _notebook(path)
        if notebook.number in found:
            raise RunnerError(f"{path.name} and {found[notebook.number].path.name} have the same number")
        found[notebook.number] = notebook
    for notebook in found.values():
        for need in notebook.needs:
            if need not in found:
                raise RunnerError(f"{notebook.path.name} needs notebook {need!r}, which does not exist")
    return _in_order(found)


def select(notebooks: dict[str, Notebook], wanted: Sequence[str]) -> list[Notebook]:
    """The wanted ones ("01", "1", "01_profile_bottlenecks"; none: all), still each after those that it needs."""
    numbers = {_number(word, notebooks) for word in wanted} if wanted else set(notebooks)
    if not numbers:
        raise RunnerError("there are no notebooks in notebooks/; they are named NN_name.ipynb")
    return [notebook for number, notebook in notebooks.items() if number in numbers]


def parameter_set(wanted: str, root: Path) -> ParameterSet:
    """The set `params/<wanted>`, or the folder of that path. Raises `RunnerError` when there is neither."""
    known = sorted(folder.name for folder in (root / "params").iterdir() if folder.is_dir())
    if wanted in known:
        return ParameterSet(wanted, root / "params" / wanted)
    folder = Path(wanted).expanduser().resolve()
    if wanted and folder.is_dir():
        return ParameterSet(folder.name, folder)
    raise RunnerError(f"there is no parameter set or folder {wanted!r}; sets are {', '.join(known)}")


def read_parameters(
    chosen: Sequence[Notebook],
    set_: ParameterSet,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    every: Sequence[Notebook] = (),
) -> dict[str, dict[str, Any] | None]:
    """The parameters of each chosen notebook by its name, checked; None where the set has no file for it.

    `overrides` are (name, text) pairs from a command line; each goes to the notebooks that declare it. Files that
    belong to no notebook (out of `every`, the chosen ones when empty) are refused: they would be ignored otherwise.
    Raises `ParameterError` or `RunnerError`.
    """
    _no_stray_files(set_, every or chosen)
    schemas = {notebook.name: parameters.declared(notebook.path) for notebook in chosen}
    for name, schema in schemas.items():
        if "output_dir" not in schema:
            raise RunnerError(f"{name} declares no parameter output_dir: the folder that its results go to")
    _no_stray_overrides(overrides, schemas)
    checked: dict[str, dict[str, Any] | None] = {}
    for notebook in chosen:
        file, schema = set_.file(notebook), schemas[notebook.name]
        own = {name: parameters.parse(text, schema[name]) for name, text in overrides if name in schema}
        checked[notebook.name] = _checked(file, schema, own) if file.exists() else None
    return checked


def output_folder(set_: ParameterSet, given: Sequence[dict[str, Any]], root: Path) -> Path:
    """Where the results of a set go: the `output_dir` that its files name (relative to the repository), else
    `outputs/<set>`. Raises `RunnerError` when they name several, or when a set of that name belongs to the repository.
    """
    named = {str(values["output_dir"]) for values in given if "output_dir" in values}
    if len(named) > 1 or (named and any("output_dir" not in values for values in given)):
        raise RunnerError(f"the parameters of {set_.folder} name different output_dir; one run has one folder")
    if named:
        return _result_folder(named.pop(), root)
    if set_.folder != root / "params" / set_.name and (root / "params" / set_.name).is_dir():
        raise RunnerError(
            f"outputs/{set_.name} belongs to params/{set_.name}; rename {set_.folder} or give -p output_dir"
        )
    return root / "outputs" / set_.name


def _result_folder(named: str, root: Path) -> Path:
    folder = (root / named).resolve()
    if folder.exists() and not folder.is_dir():
        raise RunnerError(f"output_dir {named!r} is a file; it must be a folder for results")
    if folder in (root, *root.parents):
        raise RunnerError(f"output_dir {named!r} holds the repository; it must be a folder for results alone")
    return folder


def _checked(file: Path, schema: dict[str, Parameter], own: dict[str, Any]) -> dict[str, Any]:
    """The values that a file and the command line give, understood; not the defaults."""
    given = parameters.load_yaml(file)
    try:
        understood = parameters.check(given, schema)
    except parameters.ParameterError as error:
        raise parameters.ParameterError(f"{file}: {error}") from None
    understood |= {name: value for name, value in parameters.check(own, schema).items() if name in own}
    return {name: understood[name] for name in schema if name in given or name in own}


def _no_stray_files(set_: ParameterSet, notebooks: Sequence[Notebook]) -> None:
    names = [notebook.name for notebook in notebooks]
    for file in sorted([*set_.folder.glob("*.yaml"), *set_.folder.glob("*.yml")]):
        if file.suffix != ".yaml" or file.stem not in names:
            close = difflib.get_close_matches(file.stem, names, n=1)
            hint = f"; did you mean {close[0]}.yaml?" if close else ""
            raise RunnerError(f"{file} belongs to no notebook{hint}")


def _no_stray_overrides(overrides: Sequence[tuple[str, str]], schemas: dict[str, dict[str, Parameter]]) -> None:
    known = {name: parameter for schema in schemas.values() for name, parameter in schema.items()}
    given: set[str] = set()
    for name, _ in overrides:
        if name not in known:
            raise parameters.ParameterError(f"-p {name}: {parameters.unknown(name, known)}")
        if name in given:
            raise parameters.ParameterError(f"-p {name} is given twice")
        given.add(name)


def _notebook(path: Path) -> Notebook:
    try:
        about = json.loads(path.read_bytes())["metadata"].get("gnnlab", {})
        needs = tuple(about.get("needs", ()))
        minutes = float(about.get("timeout_minutes", DEFAULT_TIMEOUT_MINUTES))
    except OSError as error:
        raise RunnerError(f"could not read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RunnerError(f"{path} is not a notebook, or its metadata 'gnnlab' is not as it should be") from None
    if not minutes > 0:
        raise RunnerError(f"{path}: timeout_minutes is {minutes}; it must be above 0")
    return Notebook(path, needs, minutes)


def _in_order(found: dict[str, Notebook]) -> dict[str, Notebook]:
    sorter = TopologicalSorter({number: sorted(notebook.needs) for number, notebook in sorted(found.items())})
    try:
        sorter.prepare()
    except CycleError as error:
        raise RunnerError(f"the notebooks {' -> '.join(error.args[1])} need each other") from None
    ordered: list[str] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()])
        ordered.append(ready.pop(0))
        sorter.done(ordered[-1])
    return {number: found[number] for number in ordered}


def _number(word: str, notebooks: dict[str, Notebook]) -> str:
    stem = Path(word).stem
    for number, notebook in notebooks.items():
        if stem in (number, number.removeprefix("0"), notebook.name):
            return number
    known = ", ".join(notebook.name for notebook in notebooks.values()) or "none"
    raise RunnerError(f"there is no notebook {word!r}; there are: {known}")
