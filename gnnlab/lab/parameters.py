"""The parameters of a notebook: its cell tagged `parameters` is the schema, and every value is held against it.

A line of that cell declares one parameter:

    hidden: int = 64         # channels of a hidden layer; 8..1024
    local: str = "gin"       # local message passing; gin|gat|gcn
    rates: list[float] = []  # learning rates to try; 0..1

Types are `int`, `float`, `str`, `bool`, `list[int]`, `list[float]`, `list[str]`. In the comment `lo..hi` or `lo..` is a
range and `a|b|c` are the choices; for lists they hold for each element. The cell is read, never executed.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import flat_yaml
from .schema import Parameter, ParameterError, check, show, understood, understood_element, unknown

__all__ = ["Parameter", "ParameterError", "check", "declared", "describe", "from_namespace", "load_yaml", "parse"]

TYPES = ("int", "float", "str", "bool", "list[int]", "list[float]", "list[str]")
LARGEST_FILE = 64 * 1024  # bytes; what is larger is no parameter file
_NUMBER = r"([-+]?(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?)"
_RANGE = re.compile(rf"{_NUMBER}\.\.(?:{_NUMBER}\.?)?")


def declared(notebook_path: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name, in its order.

    Raises `ParameterError` when the file is no notebook, has not exactly one cell tagged `parameters`, or when a line
    of that cell is not a declaration (the message names the line).
    """
    path = Path(notebook_path)
    cells = [source for tags, source in _code_cells(path) if "parameters" in tags]
    if len(cells) != 1:
        raise ParameterError(f"{path.name} has {len(cells)} code cells tagged 'parameters'; it must have one")
    try:
        return _declarations(cells[0])
    except ParameterError as error:
        raise ParameterError(f"{path.name}, cell 'parameters', {error}") from None


def _code_cells(path: Path) -> list[tuple[list[str], str]]:
    """Tags and source of every code cell of a notebook file."""
    try:
        cells = [cell for cell in json.loads(_read(path))["cells"] if cell["cell_type"] == "code"]
        return [(list(cell["metadata"].get("tags", [])), "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"{path} is not a notebook of format 4 (.ipynb, JSON)") from None


def _declarations(source: str) -> dict[str, Parameter]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ParameterError(
            f"line {error.lineno}: not Python ({error.msg}); only `name: type = value` lines"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ParameterError(f"line 1: not Python ({error or type(error).__name__})") from None
    comments = dict(_comments(source))
    found: dict[str, Parameter] = {}
    for node in tree.body:
        try:
            parameter = _declaration(node, comments.get(node.end_lineno, ""))
            if parameter.name in found:
                raise ParameterError(f"{parameter.name} is declared twice")
        except ParameterError as error:
            raise ParameterError(f"line {node.lineno}: {error}") from None
        found[parameter.name] = parameter
    return found


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#").strip()


def _declaration(node: ast.stmt, comment: str) -> Parameter:
    if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
        raise ParameterError("not of the form `name: type = literal  # meaning, unit; choices or range`")
    name, type_ = node.target.id, ast.unparse(node.annotation)
    if type_ not in TYPES:
        raise ParameterError(f"{name} has the type {type_!r}; allowed are {', '.join(TYPES)}")
    if node.lineno != node.end_lineno:
        raise ParameterError(f"{name} spans several lines; write one line a parameter")
    meaning, limits = _limits(comment, type_)
    if not meaning:
        raise ParameterError(f"{name} has no comment that says what it means")
    try:
        default = ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ParameterError(f"{name} has a default that is not a literal") from None
    bare = Parameter(name, type_, default, meaning, **limits)
    return Parameter(name, type_, understood(default, bare), meaning, **limits)


def _limits(comment: str, type_: str) -> tuple[str, dict[str, Any]]:
    """The meaning in a comment without its range or choices, and these: {}, low and high, or choices."""
    element = Parameter("", type_, None, "").element
    limits: dict[str, Any] = {}
    for word in re.split(r"[\s,;]+", comment):
        token = word.strip("()")
        if "|" in token:
            found = {"choices": _choices(token.removesuffix("."), element)}
        elif re.search(r"\d\.\.", token):
            found = _range(token, element)
        else:
            continue
        if limits:
            raise ParameterError(f"its comment holds more than one range or choice; the second is {token!r}")
        limits = found
        comment = comment.replace(word, "", 1)
    return re.sub(r"\s+", " ", comment).strip(" ,;"), limits


def _choices(token: str, element: str) -> tuple[Any, ...]:
    words = token.split("|")
    if element == "bool" or "" in words or len(set(words)) < len(words):
        raise ParameterError(f"the choices {token!r} do not suit the type {element}; write a|b|c")
    probe = Parameter("a choice", element, None, "")
    return tuple(word if element == "str" else understood_element(word, probe) for word in words)


def _range(token: str, element: str) -> dict[str, Any]:
    match = _RANGE.fullmatch(token)
    if match is None or element not in ("int", "float"):
        raise ParameterError(f"the range {token!r} does not suit the type {element}; write lo..hi or lo.. for numbers")
    probe = Parameter(f"an end of the range {token!r}", element, None, "")
    low, high = (None if end is None else understood_element(end, probe) for end in match.groups())
    if high is not None and low > high:
        raise ParameterError(f"the range {token!r} has its ends swapped")
    return {"low": low, "high": high}


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a parameter file: flat YAML, UTF-8. An empty file gives no parameter. Raises `ParameterError`."""
    path = Path(path)
    try:
        return flat_yaml.mapping(_read(path, LARGEST_FILE))
    except flat_yaml.FlatYamlError as error:
        raise ParameterError(f"{path}: {error}; a parameter file holds `name: value` lines") from None


def parse(text: str, parameter: Parameter) -> Any:
    """The value that was written for a parameter on a command line; `check` still has to hold it against the schema."""
    try:
        value = flat_yaml.value(text)
    except flat_yaml.FlatYamlError as error:
        if parameter.type == "str":
            return text
        raise ParameterError(f"{parameter.name}: got {show(text)} ({error}); allowed is {parameter.allowed}") from None
    return text if parameter.type == "str" and not isinstance(value, str) else value


def from_namespace(namespace: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """The parameters of a running notebook, from its `globals()` after the parameter cells; held against the schema.

    papermill alone only warns of unknown names; they are found in the source of the cell that it injected (the kernel
    keeps executed sources in `In`). Raises `ParameterError` as `check` does.
    """
    sources = namespace.get("In", [])
    for source in sources if isinstance(sources, Sequence) else []:
        if isinstance(source, str) and source.lstrip().startswith("# Parameters"):
            for name in _assigned(source):
                if name not in declared:
                    raise ParameterError(unknown(name, declared))
    missing = [name for name in declared if name not in namespace]
    if missing:
        raise ParameterError(f"{missing[0]} has no value; run the cell tagged 'parameters' first")
    return check({name: namespace[name] for name in declared}, declared)


def describe(declared: Mapping[str, Parameter]) -> list[dict[str, str]]:
    """Rows for a table: name, type, default, meaning, allowed."""
    return [
        {
            "name": parameter.name,
            "type": parameter.type,
            "default": json.dumps(parameter.default, ensure_ascii=False),
            "meaning": parameter.meaning,
            "allowed": parameter.allowed,
        }
        for parameter in declared.values()
    ]


def _assigned(source: str) -> Iterator[str]:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):  # a magic or an unfinished cell: nothing that papermill writes
        return
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _read(path: Path, at_most: int | None = None) -> str:
    """The text of a file, UTF-8 with or without a byte-order mark."""
    try:
        if not path.exists():
            raise ParameterError(f"there is no file {path}")
        if not path.is_file():
            raise ParameterError(f"{path} is not a file")
        if at_most is not None and path.stat().st_size > at_most:
            raise ParameterError(f"{path} is larger than {at_most // 1024} KiB, so it is no parameter file")
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ParameterError(f"could not read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ParameterError(f"{path} is not UTF-8 text (byte {error.start}); it must be saved as UTF-8") from None
