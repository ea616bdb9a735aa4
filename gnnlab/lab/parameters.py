"""The parameters of a notebook: its cell tagged `parameters` is the schema, and every value is checked against it.

A line of that cell declares one parameter, as papermill reads it:

    hidden: int = 64         # channels of a hidden layer; 8..1024
    local: str = "gin"       # local message passing; gin|gat|gcn
    rates: list[float] = []  # learning rates to try; 0..1

At the end of the comment `lo..hi` or `lo..` is a range and `a|b|c` are the choices; for lists they hold for each
element. The cell is never executed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from ruamel.yaml import YAML, YAMLError

from gnnlab.errors import GnnlabError, first_wrong, meant
from gnnswap.errors import one_line, quoted

TYPES = {"int": int, "float": float, "str": str, "bool": bool}
FORM = "`name: type = literal  # meaning; range or choices`"
_LINE = re.compile(r"(\w+) *: *((?:list\[)?(?:int|float|str|bool)\]?) *= *(.+?) *# *(.+?)(?:; *(\S+\.\.\S*|\S+\|\S+))?")


@dataclass(frozen=True)
class Parameter:
    """One declared parameter. `allowed` is "8..1024", "8..", "gin|gat|gcn" or ""; of a list it holds for each element,
    and a list whose default has elements must have some."""

    name: str
    type: str
    default: Any
    meaning: str
    allowed: str = ""

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        name = self.type.removeprefix("list[").removesuffix("]")
        kind: Any = TYPES[name]
        if "|" in self.allowed:
            element: Any = Literal[tuple(self.allowed.split("|"))]
        elif name in ("int", "float"):
            low, high = (kind(end) if end else None for end in self.allowed.partition("..")[::2])
            element = Annotated[kind, Field(ge=low, le=high, allow_inf_nan=False), BeforeValidator(_no_truth)]
        else:
            element = Annotated[kind, Field(strict=True)]
        return TypeAdapter(
            element if name == self.type else Annotated[list[element], Field(min_length=bool(self.default))]
        )

    def understood(self, value: Any) -> Any:
        """A value as its type has it, within range and choices: "1e-3" is a number where one is wanted, 8.0 a whole
        number. Raises `GnnlabError`: the parameter, what was given, what is allowed.
        """
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            what = first_wrong(error)[1]
            wrong = quoted(error.errors()[0]["input"])
            raise GnnlabError(f"{self.name}: got {wrong}; {what[0].lower()}{what[1:]}") from None


def _no_truth(value: Any) -> Any:
    """pydantic takes True for 1."""
    if isinstance(value, bool):
        raise ValueError("a number is wanted")
    return value


# ---- what a notebook declares ---------------------------------------------------------------------------------------


def notebook(path: Path) -> dict[str, Any]:
    """The JSON of a notebook. Raises `GnnlabError` where the file is none."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise GnnlabError(f"{path} is not a notebook of format 4 (.ipynb, JSON)") from None


def declared(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name, in its order.

    Raises `GnnlabError` when the file is no notebook, has not exactly one cell tagged `parameters`, or when a line
    of that cell is not a declaration (the message shows the line).
    """
    tagged = [cell for cell in notebook(path)["cells"] if "parameters" in cell["metadata"].get("tags", [])]
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
            raise GnnlabError(f"{path.name}, cell 'parameters': {quoted(line)} is not of the form {FORM}") from None
    return parameters


# ---- what is given --------------------------------------------------------------------------------------------------


def check(given: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Every declared parameter with its value: the given one, understood by its type, or the default.

    Raises `GnnlabError`, one line: the parameter, what was given, what is allowed; or the closest name that exists.
    """
    for name in given:
        if name not in declared:
            raise GnnlabError(unknown(name, declared))
    return {name: p.understood(given.get(name, p.default)) for name, p in declared.items()}


def unknown(name: Any, declared: Mapping[str, Any]) -> str:
    """The sentence that says that a parameter does not exist, with the closest that does."""
    hint = meant(name, declared) or f"; known are {', '.join(declared) or 'none'}"
    return f"unknown parameter {quoted(name)}{hint}"


def _from_yaml(text: str) -> Any:
    """What YAML 1.2 says: 1e-3 is a number, `yes` a text, a key that stands twice is an error."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise GnnlabError(f"{line}not YAML ({getattr(error, 'problem', None) or one_line(error)})") from None


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a parameter file: `name: value` lines in UTF-8. An empty file gives no parameter. Raises `GnnlabError`."""
    try:
        values = _from_yaml(path.read_text(encoding="utf-8-sig")) or {}
        if not isinstance(values, dict):
            raise GnnlabError("no `name: value` lines")
    except (UnicodeDecodeError, GnnlabError) as error:
        wrong = "not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        raise GnnlabError(f"{path}: {wrong}; a parameter file holds `name: value` lines in UTF-8") from None
    return values


def read(path: Path, declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters of a file, checked; those that it leaves out are left out. Raises `GnnlabError`, with the file."""
    values = load_yaml(path)
    try:
        checked = check(values, declared)
    except GnnlabError as error:
        raise GnnlabError(f"{path}: {error}") from None
    return {name: checked[name] for name in values}


def parse(text: str, parameter: Parameter) -> Any:
    """The value that was written for a parameter on a command line, checked."""
    value: Any = text
    if parameter.type != "str":
        with suppress(GnnlabError):  # what is no YAML is refused as it stands
            value = _from_yaml(text)
    return parameter.understood(value)


def from_namespace(namespace: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters of a running notebook, from its `globals()` after the parameter cells; held against the schema.

    papermill alone only warns of unknown names; here they are refused, from the cell that it injected (the kernel keeps
    executed sources in `In`). Raises `GnnlabError` as `check` does.
    """
    for source in namespace.get("In", []):
        if source.startswith("# Parameters\n"):
            for name in set(re.findall(r"^(\w+) = ", source, re.MULTILINE)) - declared.keys():
                raise GnnlabError(unknown(name, declared))
    missing = [name for name in declared if name not in namespace]
    if missing:
        raise GnnlabError(f"{missing[0]} has no value; run the cell tagged 'parameters' first")
    return check({name: namespace[name] for name in declared}, declared)
