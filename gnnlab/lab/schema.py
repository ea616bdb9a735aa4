"""A parameter's schema, and whether a value fits it.

>>> hidden = Parameter("hidden", "int", 64, "channels of a hidden layer", low=8, high=1024)
>>> check({"hidden": "1e2"}, {"hidden": hidden})
{'hidden': 100}
>>> check({"hiden": 8}, {"hidden": hidden})
Traceback (most recent call last):
gnnlab.lab.schema.ParameterError: unknown parameter 'hiden'; did you mean 'hidden'?
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import flat_yaml

_NOUNS = {"int": "whole number", "float": "number", "str": "text"}
_LARGEST_INT = 2**63 - 1
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class ParameterError(ValueError):
    """A parameter, a parameter file or a declaration that cannot be used. The message is one line for the reader."""


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
        if self.type == "bool":
            return "true or false"
        if self.choices:
            words = ", ".join(map(str, self.choices))
            return f"a list of values out of: {words}" if self.is_list else f"one of {words}"
        span = ""
        if self.low is not None:
            span = f" from {_number(self.low)} " + ("up" if self.high is None else f"to {_number(self.high)}")
        noun = _NOUNS[self.element]
        return (f"a list of {noun}s" if self.is_list else f"a {noun}") + span


def check(given: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Every declared parameter with its value: the given one, understood by its type, or the default.

    `"1e-3"` is understood as a number where one is wanted, `8.0` as a whole number; a truth value is no number and NaN
    and infinity are refused. Raises `ParameterError`, one line: the parameter, what was given, what is allowed.
    """
    if not isinstance(given, Mapping):
        raise ParameterError(f"parameters must be `name: value` pairs, got {show(given)}")
    for name in given:
        if not isinstance(name, str) or name not in declared:
            raise ParameterError(unknown(name, declared))
    return {
        name: understood(given[name], parameter) if name in given else _copy(parameter.default)
        for name, parameter in declared.items()
    }


def unknown(name: Any, declared: Mapping[str, Any]) -> str:
    """The sentence that says that a parameter does not exist, with the closest that does."""
    close = difflib.get_close_matches(name, declared, n=1) if isinstance(name, str) else []
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(declared) or 'none'}"
    return f"unknown parameter {show(name)}; {hint}"


def understood(value: Any, parameter: Parameter) -> Any:
    """A value as the type of `parameter` has it, lists too, within its range and choices; else `ParameterError`."""
    if not parameter.is_list:
        return understood_element(value, parameter)
    if not isinstance(value, list | tuple):
        hint = f"; write [{show(value)}]" if isinstance(value, int | float) else ""
        raise _refusal(value, parameter, hint)
    if len(value) == 0 and parameter.default:
        raise _refusal(value, parameter, ", at least one")
    return [understood_element(item, parameter) for item in value]


def understood_element(value: Any, parameter: Parameter) -> Any:
    """A single value as the type of `parameter` has it, within its range and choices."""
    result = _AS[parameter.element](value)
    if result is None:
        quotes = isinstance(value, bool | int | float) and parameter.element == "str"
        raise _refusal(value, parameter, "; put it in quotes" if quotes else "")
    too_low = parameter.low is not None and result < parameter.low
    too_high = parameter.high is not None and result > parameter.high
    if too_low or too_high or (parameter.choices and result not in parameter.choices):
        raise _refusal(value, parameter)
    return result


def _as_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _as_int(value: Any) -> int | None:
    number = flat_yaml.scalar(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if isinstance(number, float) and not number.is_integer():
        return None
    return int(number) if abs(number) <= _LARGEST_INT else None


def _as_float(value: Any) -> float | None:
    number = flat_yaml.scalar(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if isinstance(number, int) and abs(number) > _LARGEST_INT:
        return None
    return float(number) if math.isfinite(number) else None


def _as_str(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    return None if re.search(r"[\x00\ud800-\udfff]", value) else str(value)


_AS = {"bool": _as_bool, "int": _as_int, "float": _as_float, "str": _as_str}


def _refusal(value: Any, parameter: Parameter, hint: str = "") -> ParameterError:
    return ParameterError(f"{parameter.name}: got {show(value)}; allowed is {parameter.allowed}{hint}")


def show(value: Any) -> str:
    """A value in a message: one line, not too long."""
    try:
        return re.sub(r"\s+", " ", _SHORT.repr(value))
    except (ValueError, RecursionError):  # Python does not print integers of more than 4,300 digits
        return f"a {type(value).__name__} that is too large to print"


def _number(value: float) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _copy(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
