"""Flat YAML: `name: value` lines whose values are scalars or lists of scalars, and nothing else.

Parameter files need no more, and less can go wrong with it: no tags, anchors, nesting, dates or duplicate names.
Scalars are read in the manner of YAML 1.2: `1e-3` is a number; `010`, `1:30` and `yes`, which YAML 1.1 reads as 8, 90
and true, stay text, so that whoever wanted a number or a truth value is told so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

Scalar = None | bool | int | float | str

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], float("nan")),
    **dict.fromkeys([sign + word for sign in ("", "+") for word in (".inf", ".Inf", ".INF")], float("inf")),
    **dict.fromkeys(["-.inf", "-.Inf", "-.INF"], float("-inf")),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_DECIMAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_NESTED = "only single values and lists of them are read, nothing nested"
_LONGEST_NUMBER = 400  # digits; Python itself refuses to read integers of more than 4,300


class FlatYamlError(ValueError):
    """Text that is not flat YAML. The message is one line and names the line of the text."""


def mapping(text: str) -> dict[str, Scalar | list[Scalar]]:
    """Read `name: value` lines; an empty text is an empty mapping. Raises `FlatYamlError`.

    >>> mapping("rate: 1e-3\\nsizes: [8, 16]  # channels")
    {'rate': 0.001, 'sizes': [8, 16]}
    """
    events = list(_document(text))
    if not events or _is_empty(events):
        return {}
    if not isinstance(events[0], yaml.MappingStartEvent):
        raise FlatYamlError("there are no `name: value` lines in it")
    values: dict[str, Scalar | list[Scalar]] = {}
    position = 1
    while not isinstance(events[position], yaml.MappingEndEvent):
        key = events[position]
        if not isinstance(key, yaml.ScalarEvent):
            raise FlatYamlError(f"line {_line(key)}: a name must be a plain word")
        if key.value in values:
            raise FlatYamlError(f"line {_line(key)}: {key.value!r} is given twice")
        values[key.value], position = _value(events, position + 1)
    return values


def value(text: str) -> Scalar | list[Scalar]:
    """Read one scalar or one list of scalars, as on a command line. Raises `FlatYamlError`.

    >>> value("[1, 2.5, gin]")
    [1, 2.5, 'gin']
    """
    events = list(_document(text))
    return _value(events, 0)[0] if events else None


def scalar(text: str) -> Scalar:
    """What an unquoted word stands for: nothing, a truth value, a number or itself.

    >>> scalar("1e-3"), scalar("1_000"), scalar("010")
    (0.001, 1000, '010')
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _document(text: str) -> Iterator[yaml.Event]:
    """The events inside the only document of `text`. Anchors, aliases and tags are refused as they come."""
    documents = depth = 0
    for event in _events(text):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > 2:  # a list in the mapping; PyYAML takes quadratic time over what is nested deeply
            raise FlatYamlError(f"line {_line(event)}: {_NESTED}")
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise FlatYamlError(f"line {_line(event)}: a second document (`---`) starts; there can be only one")
        elif isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise FlatYamlError(
                f"line {_line(event)}: anchors (&) and aliases (*) are not read; put such text in quotes"
            )
        elif getattr(event, "tag", None) is not None:
            raise FlatYamlError(f"line {_line(event)}: tags (!) are not read; put such text in quotes")
        elif not isinstance(event, yaml.StreamStartEvent | yaml.StreamEndEvent | yaml.DocumentEndEvent):
            yield event


def _events(text: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise FlatYamlError(f"{where}not YAML ({error.problem or error.context})") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise FlatYamlError(f"line {line}: the character U+{error.character:04X} is not allowed") from None
    except (ValueError, OverflowError) as error:  # PyYAML: an escape such as "\UFFFFFFFF"
        raise FlatYamlError(f"not YAML ({error})") from None


def _value(events: list[yaml.Event], position: int) -> tuple[Scalar | list[Scalar], int]:
    """The value that starts at `position`, and the position after it."""
    event = events[position]
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event), position + 1
    if isinstance(event, yaml.SequenceStartEvent):
        end = position + 1
        while isinstance(events[end], yaml.ScalarEvent):
            end += 1
        if isinstance(events[end], yaml.SequenceEndEvent):
            return [_scalar(item) for item in events[position + 1 : end]], end + 1
        event = events[end]
    raise FlatYamlError(f"line {_line(event)}: {_NESTED}")


def _scalar(event: yaml.ScalarEvent) -> Scalar:
    try:
        event.value.encode()
    except UnicodeEncodeError:
        raise FlatYamlError(f"line {_line(event)}: the text holds half of a surrogate pair") from None
    return event.value if event.style else scalar(event.value)  # a style is a sort of quotes


def _is_empty(events: list[yaml.Event]) -> bool:
    return len(events) == 1 and isinstance(events[0], yaml.ScalarEvent) and _scalar(events[0]) is None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1
