"""The parameters of a notebook: its cell tagged `parameters` is the schema, and every value is checked against it.

A line of that cell declares one parameter, as papermill reads it:

    hidden: int = 64         # channels of a hidden layer; 8..1024
    local: str = "gin"       # local message passing; gin|gat|gcn
    rates: list[float] = []  # learning rates to try; 0..1

In the comment `lo..hi` or `lo..` is a range and `a|b|c` are the choices; for lists they hold for each element. The cell
is never executed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from ruamel.yaml import YAML, YAMLError

from gnnlab.errors import GnnlabError, meant, one_line, shown

TYPES = {"int": int, "float": float, "str": str, "bool": bool}
FORM = "`name: type = literal  # meaning, unit; choices or range`"
_NOUNS = {"int": "whole number", "float": "number", "str": "text", "bool": "truth value"}
_LINE = re.compile(r"(\w+) *: *([\w\[\]]+) *= *(.+?) *(?:#(.*))?")
_RANGE = re.compile(r"\(?(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)?\)?\.?")
_CHOICES = re.compile(r"\(?([^\s|]+(?:\|[^\s|]+)+?)\)?\.?")


@dataclass(frozen=True)
class Parameter:
    """One declared parameter. `low` and `high` are inclusive; for a list they and `choices` hold for each element."""

    name: str
    type: str
    default: Any
    meaning: str
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()

    @property
    def element(self) -> str:
        """The type of the value, or of a list's elements."""
        return self.type.removeprefix("list[").removesuffix("]")

    @property
    def is_list(self) -> bool:
        return self.type.startswith("list[")

    @property
    def allowed(self) -> str:
        """What it may be, as the end of a sentence: "a whole number from 8 to 1024"."""
        if self.element == "bool":
            return "true or false"
        least = "at least one of" if self.default else "values out of"
        if self.choices:
            words = ", ".join(map(str, self.choices))
            return f"a list of {least}: {words}" if self.is_list else f"one of {words}"
        span = ""
        if self.low is not None:
            span = f" from {self.low:,.12g}" + (" up" if self.high is None else f" to {self.high:,.12g}")
        noun = _NOUNS[self.element]
        return (f"a list of {noun}s{', at least one,' * bool(self.default)}" if self.is_list else f"a {noun}") + span

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        exact = {"bool": {"strict": True}, "str": {"strict": True}, "float": {"allow_inf_nan": False}, "int": {}}
        limits = Field(ge=self.low, le=self.high, **exact[self.element])
        kind: Any = Annotated[
            TYPES[self.element], BeforeValidator(self._no_truth), limits, AfterValidator(self._chosen)
        ]
        return TypeAdapter(Annotated[list[kind], Field(min_length=int(bool(self.default)))] if self.is_list else kind)

    def _no_truth(self, value: Any) -> Any:
        """pydantic takes True for 1."""
        if isinstance(value, bool) and self.element != "bool":
            raise ValueError(value)
        return value

    def _chosen(self, value: Any) -> Any:
        if self.choices and value not in self.choices:
            raise ValueError(value)
        return value

    def understood(self, value: Any) -> Any:
        """A value as its type has it, within range and choices: "1e-3" is a number where one is wanted, 8.0 a whole
        number. Raises `GnnlabError`: the parameter, what was given, what is allowed.
        """
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            wrong = error.errors()[0]["input"]
            raise GnnlabError(f"{self.name}: got {shown(wrong)}; allowed is {self.allowed}") from None


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
    lines = [line for line in map(str.strip, "".join(tagged[0]["source"]).splitlines()) if line and line[0] != "#"]
    parameters: dict[str, Parameter] = {}
    for line in lines:
        try:
            if not (match := _LINE.fullmatch(line)) or match[1] in parameters:
                raise GnnlabError(f"{shown(line)} is not of the form {FORM}, each name once")
            parameters[match[1]] = _declaration(*match.groups())
        except GnnlabError as error:
            raise GnnlabError(f"{path.name}, cell 'parameters': {error}") from None
    return parameters


def _declaration(name: str, kind: str, default: str, comment: str | None) -> Parameter:
    """A parameter from the parts of its line; ranges and choices are words of the comment."""
    element = kind.removeprefix("list[").removesuffix("]")
    if element not in TYPES:
        raise GnnlabError(f"{name} has the type {kind!r}; allowed are {', '.join(TYPES)} and lists of them")
    try:
        value = ast.literal_eval(default)
    except (ValueError, TypeError, SyntaxError):
        raise GnnlabError(f"{name} has a default that is not a literal without '#': {shown(default)}") from None
    bare = Parameter(f"a range or choice in the comment of {name}", element, 0, "")
    limits: dict[str, Any] = {}
    comment = comment or ""
    for word in re.split(r"[\s,;]+", comment):
        if match := _RANGE.fullmatch(word):
            low, high = (None if end is None else bare.understood(end) for end in match.groups())
            limits = {"low": low, "high": high}
        elif match := _CHOICES.fullmatch(word):
            limits = {"choices": tuple(bare.understood(choice) for choice in match[1].split("|"))}
        else:
            continue
        comment = comment.replace(word, "", 1)
    meaning = re.sub(r"\s+", " ", comment).strip(" ,;")
    if not meaning:
        raise GnnlabError(f"{name} has no comment that says what it means")
    checked = Parameter(name, kind, value, meaning, **limits).understood(value)
    return Parameter(name, kind, checked, meaning, **limits)


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
    return f"unknown parameter {shown(name)}{hint}"


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
