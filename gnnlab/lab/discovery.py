"""What there is to run: the repository, its ten notebooks in the order of their numbers, and its parameter sets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gnnlab.errors import GnnlabError, meant

from . import parameters

NAMES = (  # whatever else lies in notebooks/ (copies, drafts, executed notebooks) is the user's
    *("01_profile_bottlenecks", "02_optimize_gnn", "03_fm_amp_training", "04_stage_export", "05_npu_measure"),
    *("06_bandwidth_analysis", "07_plan_execution", "08_optimize_inference", "09_your_model", "10_serve_inference"),
)
LAB, QUICK = "outputs/lab", "outputs/quick"  # below the repository: the default of each notebook, and of `gnnlab run`


class Request(NamedTuple):
    """What somebody wants to run: the `chosen` notebooks with the parameter set `params_set`, whose files are in the
    folder `params`. `values` holds every parameter of each by its name; results go to `folder`.
    """

    chosen: list[Path]
    params_set: str
    params: Path
    values: dict[str, dict[str, Any]]
    folder: Path


def request(numbers: Sequence[str], params_set: str, overrides: Sequence[tuple[str, str]] = ()) -> Request:
    """Check everything that is asked for: notebooks by number (none: all), a parameter set, which is a name or a folder
    with files named as the notebooks, and (name, text) pairs, each for the notebooks that declare it. A pair goes
    before a file, a file before the default. Raises `GnnlabError`, one line.
    """
    base = root()
    params = base / "params" / params_set
    params = params if params.is_dir() else output_folder(Path.cwd(), params_set)
    if not any(params.glob("*.yaml")):
        sets = ", ".join(sorted(folder.name for folder in (base / "params").iterdir() if folder.is_dir()))
        raise GnnlabError(f"there is no parameter set {params_set!r}, nor a folder with *.yaml; sets are {sets}")
    for file in sorted(params.glob("*.y*ml")):
        if file.name not in (known := [f"{name}.yaml" for name in NAMES]):
            raise GnnlabError(f"{file} belongs to no notebook{meant(file.name, known)}")
    chosen = notebooks(base, numbers)
    schemas = {path.stem: parameters.declared(path) for path in chosen}
    declared = {name: parameter for schema in schemas.values() for name, parameter in schema.items()}
    for name, _ in overrides:
        if name not in declared:
            raise GnnlabError(f"-p {name}: {parameters.unknown(name, declared)}")
    usual = {"output_dir": f"outputs/{params.name}"}
    values, folders = {}, set()
    for notebook, schema in schemas.items():
        file = params / f"{notebook}.yaml"
        given = parameters.read(file, schema) if file.exists() else {}
        own = {name: text for name, text in overrides if name in schema}
        values[notebook] = parameters.check(usual | given | own, schema)
        folders |= {values[notebook]["output_dir"]} if file.exists() else set()
    if len(folders) > 1:
        raise GnnlabError(f"the parameters of {params} name different output_dir; one run has one folder")
    (output_dir,) = folders or usual.values()
    return Request(chosen, params_set, params, values, output_folder(base, output_dir))


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
        f"no folder at or above {start} holds notebooks/{NAMES[0]}.ipynb and params/quick; change to a clone "
        "of gnnlab, which notebooks need (swap, optimize, profile, check, devices, infer and serve work anywhere)"
    )


def notebooks(root: Path, wanted: Sequence[str] = ()) -> list[Path]:
    """The notebooks of `NAMES` that are there, in order: the wanted ones ("01", "1", "01_profile_bottlenecks"; none:
    all). Raises `GnnlabError`.
    """
    there = [path for name in NAMES if (path := root / "notebooks" / f"{name}.ipynb").exists()]
    known = {word: path for path in there for word in (path.stem, path.stem[:2], path.stem[:2].lstrip("0"))}
    for word in wanted:
        if Path(word).stem not in known:
            raise GnnlabError(f"there is no notebook {word!r}; there are: {', '.join(path.stem for path in there)}")
    chosen = [known[Path(word).stem] for word in wanted] or there
    return [path for path in there if path in chosen]
