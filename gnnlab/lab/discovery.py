"""What there is to run: the repository, its ten notebooks, their parameters, and parameter sets.

A notebook's cell tagged `parameters` is the schema. A line of it declares one parameter, as papermill reads it:

    hidden: int = 64         # channels of a hidden layer; 8..1024
    local: str = "gin"       # local message passing; gin|gat|gcn
    rates: list[float] = []  # learning rates to try; 0..1

At the end of the comment `lo..hi` or `lo..` is a range and `a|b|c` are the choices; for lists they hold for each
element. The cell is never executed; every value that a file, an option or papermill gives is checked against it.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gnnlab.errors import GnnlabError, meant
from gnnswap.errors import quoted

NAMES = (  # whatever else lies in notebooks/ (copies, drafts, executed notebooks) is the user's
    *("01_profile_bottlenecks", "02_optimize_gnn", "03_fm_amp_training", "04_stage_export", "05_npu_measure"),
    *("06_bandwidth_analysis", "07_plan_execution", "08_optimize_inference", "09_your_model", "10_serve_inference"),
)
LAB, QUICK = "outputs/lab", "outputs/quick"  # below the repository: the default of each notebook, and of `gnnlab run`
_LINE = re.compile(r"(\w+) *: *((?:list\[)?(?:int|float|str|bool)\]?) *= *(.+?) *# *(.+?)(?:; *(\S+\.\.\S*|\S+\|\S+))?")
_NUMBER = re.compile(r"\s*[-+]?(\d*|\d{1,3}(_\d{3})+)(\.\d*)?(e[-+]?\d+)?\s*", re.ASCII | re.IGNORECASE)
WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}


# ---- the repository and its notebooks --------------------------------------------------------------------------------


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
    names = [re.split(r"[/\\]", word)[-1].removesuffix(".ipynb") for word in wanted]
    for name, word in zip(names, wanted, strict=True):
        if name not in known:
            raise GnnlabError(f"there is no notebook {word!r}; there are: {', '.join(path.stem for path in there)}")
    chosen = [known[name] for name in names] or there
    return [path for path in there if path in chosen]


def output_folder(root: Path, output_dir: str) -> Path:
    """The folder that a parameter `output_dir` names: below the repository unless it is absolute or begins with ~."""
    return (root / os.path.expanduser(output_dir)).resolve()  # noqa: PTH111  Path's raises where there is no home


# ---- parameters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter:
    """One declared parameter. `allowed` is "8..1024", "8..", "gin|gat|gcn" or ""; of a list it holds for each element,
    and a list whose default has elements must have some."""

    name: str
    type: str
    default: Any
    meaning: str
    allowed: str = ""

    def understood(self, value: Any) -> Any:
        """A value as its type has it, within range and choices: "1e-3" is a number where one is wanted, 8.0 a whole
        number, the text "[1, 2]" a list. Raises `GnnlabError`: the parameter, what was given, what is allowed.
        """
        kind = self.type.removeprefix("list[").removesuffix("]")
        if kind == self.type:
            return self._element(kind, value)
        if isinstance(value, str):
            with suppress(yaml.YAMLError, RecursionError):  # what is no YAML is refused as it stands
                value = yaml.load(value, yaml.BaseLoader)
        if not isinstance(value, list | tuple) or (self.default and not value):
            raise GnnlabError(f"{self.name}: got {quoted(value)}; allowed is a list as [a, b], of {WORDS[kind]} each")
        return [self._element(kind, element) for element in value]

    def _element(self, kind: str, value: Any) -> Any:
        try:
            understood, (low, within, high) = _read(kind, value), self.allowed.partition("..")
            fits = not self.allowed or understood in self.allowed.split("|")
            if not (float(low) <= understood <= float(high or "inf") if within else fits):
                raise ValueError
        except (ValueError, TypeError, KeyError, OverflowError):
            among = f", {self.allowed}" if self.allowed else ""
            raise GnnlabError(f"{self.name}: got {quoted(value)}; allowed is {WORDS[kind]}{among}") from None
        return understood


def _read(kind: str, value: Any) -> Any:
    """A value, or the text of one, as an int, float, str or bool; True is no number, nor is what is not finite."""
    if kind == "bool":
        return {"true": True, "false": False}[str(value).lower()]
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "str" or isinstance(value, bool) or (isinstance(value, str) and not _NUMBER.fullmatch(value)):
        raise TypeError
    number = float(value)
    if not math.isfinite(number) or (kind == "int" and number != int(number)):
        raise ValueError
    return number if kind == "float" else value if isinstance(value, int) else int(number)


def _contents(path: Path) -> dict[str, Any]:
    """The JSON of a notebook. Raises `GnnlabError` where the file is none."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        raise GnnlabError(f"{path} is not a notebook of format 4 (.ipynb, JSON)") from None


def about(path: Path) -> dict[str, Any]:
    """What a notebook says of itself: {"needs": ["04"], "timeout_minutes": 10}, the latter at most."""
    return _contents(path)["metadata"].get("gnnlab", {})


def declared(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name, in its order. Raises `GnnlabError`: the file is no notebook,
    has not exactly one cell tagged `parameters`, or a line of that cell is no declaration.
    """
    tagged = [cell for cell in _contents(path)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    if len(tagged) != 1:
        raise GnnlabError(f"{path.name} has {len(tagged)} cells tagged 'parameters'; it must have one")
    parameters: dict[str, Parameter] = {}
    for line in [line for line in map(str.strip, "".join(tagged[0]["source"]).splitlines()) if line and line[0] != "#"]:
        try:
            name, kind, default, meaning, allowed = _LINE.fullmatch(line).groups("")
            parameter = Parameter(name, kind, ast.literal_eval(default), meaning, allowed)
            parameters[name] = replace(parameter, default=parameter.understood(parameter.default))
        except GnnlabError as error:
            raise GnnlabError(f"{path.name}, cell 'parameters': {error}") from None
        except (AttributeError, ValueError, TypeError, SyntaxError):
            grammar = "`name: type = literal  # meaning; range or choices`"
            raise GnnlabError(f"{path.name}, cell 'parameters': {quoted(line)} does not read {grammar}") from None
    return parameters


def check_parameters(given: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Every declared parameter with its value: the given one, understood by its type, or the default. `GnnlabError`."""
    for name in given:
        if name not in declared:
            raise GnnlabError(_unknown(name, declared))
    return {name: p.understood(given.get(name, p.default)) for name, p in declared.items()}


def _unknown(name: Any, declared: Mapping[str, Any]) -> str:
    """The line for a parameter that does not exist, with the closest known name."""
    hint = meant(name, declared) or f"; known are {', '.join(declared) or 'none'}"
    return f"unknown parameter {quoted(name)}{hint}"


def read_parameters(path: Path, declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters of a YAML file of `name: value` lines in UTF-8, checked; those that it leaves out are left out.

    The declared type says what a value is, not YAML: 1e-3 is a number where one is wanted, `yes` and 010 are the text
    of a text. Raises `GnnlabError`, with the file.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        tree, values = yaml.compose(text, yaml.BaseLoader), yaml.load(text, yaml.BaseLoader) or {}
        if not isinstance(values, dict):
            raise GnnlabError("it has no `name: value` lines")
        if tree and len(tree.value) > len(values):
            raise GnnlabError(f"a name stands twice; it has {', '.join(name.value for name, _ in tree.value)}")
        checked = check_parameters(values, declared)
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise GnnlabError(f"{path} is not YAML in UTF-8 ({why}); write `name: value` lines") from None
    except GnnlabError as error:
        raise GnnlabError(f"{path}: {error}") from None
    return {name: checked[name] for name in values}


def from_namespace(namespace: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters of a running notebook, from its `globals()` after the parameter cells; held against the schema.

    papermill alone only warns of unknown names; here they are refused, from the cell that it injected (the kernel keeps
    executed sources in `In`). Raises `GnnlabError` as `check_parameters` does.
    """
    for source in namespace.get("In", []):
        if source.startswith("# Parameters\n"):
            for name in set(re.findall(r"^(\w+) = ", source, re.MULTILINE)) - declared.keys():
                raise GnnlabError(_unknown(name, declared))
    missing = [name for name in declared if name not in namespace]
    if missing:
        raise GnnlabError(f"{missing[0]} has no value; run the cell tagged 'parameters' first")
    return check_parameters({name: namespace[name] for name in declared}, declared)


# ---- what somebody wants to run --------------------------------------------------------------------------------------


class RunRequest(NamedTuple):
    """What somebody wants to run: the `chosen` notebooks with the parameter set `params_set`, whose files are in the
    folder `params`. `values` holds every parameter of each by its name; results go to `folder`.
    """

    chosen: list[Path]
    params_set: str
    params: Path
    values: dict[str, dict[str, Any]]
    folder: Path


def request(numbers: Sequence[str], params_set: str, overrides: Sequence[tuple[str, str]] = ()) -> RunRequest:
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
    files = sorted(params.glob("*.y*ml"))  # also links that lead nowhere, which cannot be read
    for file in files:
        if file.name not in (known := [f"{name}.yaml" for name in NAMES]):
            raise GnnlabError(f"{file} belongs to no notebook{meant(file.name, known)}")
    chosen = notebooks(base, numbers)
    schemas = {path.stem: declared(path) for path in chosen}
    every = {name: parameter for schema in schemas.values() for name, parameter in schema.items()}
    for name, _ in overrides:
        if name not in every:
            raise GnnlabError(f"-p {name}: {_unknown(name, every)}")
    usual = {"output_dir": f"outputs/{params.name}"}
    values, folders = {}, set()
    for stem, schema in schemas.items():
        file = params / f"{stem}.yaml"
        given = read_parameters(file, schema) if file in files else {}
        own = {name: text for name, text in overrides if name in schema}
        values[stem] = check_parameters(usual | given | own, schema)
        folders |= {values[stem]["output_dir"]} if file in files else set()
    if len(folders) > 1:
        raise GnnlabError(f"the parameters of {params} name different output_dir; one run has one folder")
    (output_dir,) = folders or usual.values()
    return RunRequest(chosen, params_set, params, values, output_folder(base, output_dir))


def results_of(params_set: str) -> Path:
    """The folder of the results of a parameter set. Raises `GnnlabError` where nothing has been run with it."""
    folder = request((), params_set).folder
    if not folder.is_dir():
        raise GnnlabError(f"there are no results in {folder}; run gnnlab run --params {params_set} first")
    return folder
