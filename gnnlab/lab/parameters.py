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
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gnnlab.errors import GnnlabError, meant
from gnnswap.errors import quoted

_LINE = re.compile(r"(\w+) *: *((?:list\[)?(?:int|float|str|bool)\]?) *= *(.+?) *# *(.+?)(?:; *(\S+\.\.\S*|\S+\|\S+))?")
WORDS = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}


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
            with suppress(yaml.YAMLError):  # what is no YAML is refused as it stands
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
    if kind == "str" or isinstance(value, bool):
        raise TypeError
    number = float(value)
    if not math.isfinite(number) or (kind == "int" and number != int(number)):
        raise ValueError
    return number if kind == "float" else value if isinstance(value, int) else int(number)


def notebook(path: Path) -> dict[str, Any]:
    """The JSON of a notebook. Raises `GnnlabError` where the file is none."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise GnnlabError(f"{path} is not a notebook of format 4 (.ipynb, JSON)") from None


def about(path: Path) -> dict[str, Any]:
    """What a notebook says of itself: {"needs": ["04"], "timeout_minutes": 10}, the latter at most."""
    return notebook(path)["metadata"].get("gnnlab", {})


def declared(path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name, in its order. Raises `GnnlabError`: the file is no notebook,
    has not exactly one cell tagged `parameters`, or a line of that cell is no declaration.
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
            form = "`name: type = literal  # meaning; range or choices`"
            raise GnnlabError(f"{path.name}, cell 'parameters': {quoted(line)} is not of the form {form}") from None
    return parameters


def check(given: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Every declared parameter with its value: the given one, understood by its type, or the default. `GnnlabError`."""
    for name in given:
        if name not in declared:
            raise GnnlabError(unknown(name, declared))
    return {name: p.understood(given.get(name, p.default)) for name, p in declared.items()}


def unknown(name: Any, declared: Mapping[str, Any]) -> str:
    """The sentence that says that a parameter does not exist, with the closest that does."""
    hint = meant(name, declared) or f"; known are {', '.join(declared) or 'none'}"
    return f"unknown parameter {quoted(name)}{hint}"


def read(path: Path, declared: Mapping[str, Parameter]) -> dict[str, Any]:
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
        checked = check(values, declared)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise GnnlabError(f"{path} is not YAML in UTF-8 ({why}); write `name: value` lines") from None
    except GnnlabError as error:
        raise GnnlabError(f"{path}: {error}") from None
    return {name: checked[name] for name in values}


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
