"""The parameters of a notebook: its cell tagged `parameters` is the schema, and every value is held against it.

A line of that cell declares one parameter:

    hidden: int = 64         # channels of a hidden layer; 8..1024
    local: str = "gin"       # local message passing; gin|gat|gcn
    rates: list[float] = []  # learning rates to try; 0..1

Types are `int`, `float`, `str`, `bool`, `list[int]`, `list[float]`, `list[str]`. In the comment `lo..hi` or `lo..` is a
range and `a|b|c` are the choices; for lists they hold for each element. The cell is read, never executed. (papermill's
own `inspect_notebook` leaves out lines whose text holds what looks like a comment.)
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from gnnlab.errors import GnnlabError, meant, one_line, shown

TYPES = ("int", "float", "str", "bool", "list[int]", "list[float]", "list[str]")
FORM = "`name: type = literal  # meaning, unit; choices or range`"
_NOUNS = {"int": "whole number", "float": "number", "str": "text", "bool": "truth value"}
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
        if self.element == "bool":
            words = {"true": True, "false": False}
            kind: Any = Annotated[bool, Field(strict=True), BeforeValidator(lambda v: words.get(str(v).lower(), v))]
        elif self.element == "str":
            kind = Annotated[str, Field(strict=True), AfterValidator(lambda text: text.encode().decode())]
        else:
            limits = {name: end for name, end in (("ge", self.low), ("le", self.high)) if end is not None}
            if self.element == "int":
                kind = Annotated[int, Field(**{"ge": -(2**63), "le": 2**63 - 1, **limits})]
            else:
                kind = Annotated[float, Field(allow_inf_nan=False, **limits)]
            kind = Annotated[kind, BeforeValidator(_no_truth)]
        if self.choices:
            kind = Annotated[kind, AfterValidator(self._chosen)]
        if self.is_list:
            kind = Annotated[list[kind], Field(min_length=int(bool(self.default)))]
        return TypeAdapter(kind)

    def _chosen(self, value: Any) -> Any:
        if value not in self.choices:
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
            number = isinstance(wrong, bool | int | float)
            hint = "; put it in quotes" if number and self.element == "str" else ""
            hint = f"; write [{wrong}]" if number and self.is_list and wrong is value else hint
            raise GnnlabError(f"{self.name}: got {shown(wrong)}; allowed is {self.allowed}{hint}") from None


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a truth value is no number")
    return value


# ---- what a notebook declares ---------------------------------------------------------------------------------------


def declared(notebook_path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name, in its order.

    Raises `GnnlabError` when the file is no notebook, has not exactly one cell tagged `parameters`, or when a line
    of that cell is not a declaration (the message names the line).
    """
    path = Path(notebook_path)
    text = _read(path)
    try:
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        tagged = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise GnnlabError(f"{path} is not a notebook of format 4 (.ipynb, JSON)") from None
    if len(tagged) != 1:
        raise GnnlabError(f"{path.name} has {len(tagged)} code cells tagged 'parameters'; it must have one")
    try:
        return read_cell(tagged[0])
    except GnnlabError as error:
        raise GnnlabError(f"{path.name}, cell 'parameters', {error}") from None


def read_cell(source: str) -> dict[str, Parameter]:
    """The parameters that a cell declares. Raises `GnnlabError`, which names the line."""
    try:
        nodes = ast.parse(source).body
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise GnnlabError(f"line {line}: not Python; only lines of the form {FORM}") from None
    comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
    found: dict[str, Parameter] = {}
    for node in nodes:
        try:
            parameter = _declaration(node, comments.get(node.end_lineno, ""))
            if parameter.name in found:
                raise GnnlabError(f"{parameter.name} is declared twice")
        except GnnlabError as error:
            raise GnnlabError(f"line {node.lineno}: {error}") from None
        found[parameter.name] = parameter
    return found


def _declaration(node: ast.stmt, comment: str) -> Parameter:
    if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
        raise GnnlabError(f"not of the form {FORM}")
    name, type_ = node.target.id, ast.unparse(node.annotation)
    if type_ not in TYPES:
        raise GnnlabError(f"{name} has the type {type_!r}; allowed are {', '.join(TYPES)}")
    try:
        default = ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise GnnlabError(f"{name} has a default that is not a literal") from None
    bare = Parameter("a range or choice in its comment", type_.removeprefix("list[").removesuffix("]"), None, "")
    limits: dict[str, Any] = {}
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
    checked = Parameter(name, type_, default, meaning, **limits).understood(default)
    return Parameter(name, type_, checked, meaning, **limits)


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
    """What YAML says, every value as text: its parameter's type says what it means."""
    try:
        return yaml.load(text, yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise GnnlabError(f"{line}not YAML ({getattr(error, 'problem', None) or one_line(error)})") from None


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a parameter file: `name: value` lines in UTF-8, values as text. An empty file gives no parameter.

    Raises `GnnlabError`.
    """
    path = Path(path)
    text = _read(path)
    try:
        found = _from_yaml(text)
    except GnnlabError as error:
        raise GnnlabError(f"{path}: {error}; a parameter file holds `name: value` lines") from None
    if found and not isinstance(found, dict):
        raise GnnlabError(f"{path}: there are no `name: value` lines in it")
    return found or {}


def parse(text: str, parameter: Parameter) -> Any:
    """The value that was written for a parameter on a command line; `check` still has to hold it against the schema."""
    try:
        value = _from_yaml(text)
    except GnnlabError as error:
        if parameter.type == "str":
            return text
        raise GnnlabError(f"{parameter.name}: got {shown(text)} ({error}); allowed is {parameter.allowed}") from None
    return text if parameter.type == "str" and not isinstance(value, str) else value


def from_namespace(namespace: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters of a running notebook, from its `globals()` after the parameter cells; held against the schema.

    papermill alone only warns of unknown names; they are found in the source of the cell that it injected (the kernel
    keeps executed sources in `In`). Raises `GnnlabError` as `check` does.
    """
    for name in _injected(namespace):
        if name not in declared:
            raise GnnlabError(unknown(name, declared))
    missing = [name for name in declared if name not in namespace]
    if missing:
        raise GnnlabError(f"{missing[0]} has no value; run the cell tagged 'parameters' first")
    return check({name: namespace[name] for name in declared}, declared)


def _injected(namespace: Mapping[str, Any]) -> Iterator[str]:
    """The names that the cells assign which papermill put into a notebook."""
    sources = namespace.get("In", [])
    for text in sources if isinstance(sources, Sequence) else ():
        if not (isinstance(text, str) and text.lstrip().startswith("# Parameters")):
            continue
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):  # a magic or an unfinished cell: nothing that papermill writes
            continue
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _read(path: Path) -> str:
    """The text of a file, UTF-8 with or without a byte-order mark."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GnnlabError(f"{path} is not UTF-8 text (byte {error.start}); it must be saved as UTF-8") from None
