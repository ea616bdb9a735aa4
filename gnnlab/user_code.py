"""The user's own models and devices, named `module:factory`: in the current folder, or installed.

with importable():
    made = call("my_models:make", load("my_models:make"), data)
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError, meant
from gnnswap.errors import OneLineError, one_line, quoted, raised_at

SHOWN = 10  # functions of a module in an error


@contextmanager
def importable() -> Iterator[None]:
    """With the current folder first on `sys.path`, as it is for `python -m`, but not for a console script."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def load(spec: str) -> Callable[..., Any]:
    """The function or class that `module:factory` names; within `importable`. Raises `GnnlabError` in one line."""
    module, _, name = spec.rpartition(":")
    if module.endswith(".py"):
        as_module = module.removesuffix(".py").strip("./").replace("/", ".")
        raise GnnlabError(f"{quoted(spec)} names a file; write its module: {as_module}:{name}")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", spec):
        raise GnnlabError(f"{quoted(spec)} names no function; write module:function, as in my_models:make")
    try:
        factory = pkgutil.resolve_name(spec)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code, which may raise anything
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
            why = f"there is no module {module}: neither installed nor as a file in {Path.cwd()}"
        elif isinstance(error, ModuleNotFoundError):
            why = f"module {module} needs {error.name}, which is not installed"
        elif isinstance(error, AttributeError) and module in sys.modules:
            there = vars(sys.modules[module]).items()
            made = sorted(key for key, value in there if getattr(value, "__module__", "") == module and key[0] != "_")
            has = ", ".join(made[:SHOWN]) + ", ..." * (len(made) > SHOWN) or "none"
            why = f"module {module} has no function {quoted(name)}{meant(name, made)}; it has {has}"
        else:
            why = f"module {module} cannot be imported: {one_line(error)}{raised_at(error)}"
        raise GnnlabError(why) from error
    if not callable(factory):
        raise GnnlabError(f"{spec}: {name} is no function or class but {quoted(factory)}; name one that makes it")
    return factory


def call(spec: str, factory: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a factory makes. Whatever it raises, or arguments that it does not take, is a `GnnlabError` in one line."""
    try:
        inspect.signature(factory).bind(*arguments, **options)
    except TypeError as error:
        given = ["the graph"] * len(arguments) + [f"{name}=" for name in options]
        raise GnnlabError(f"{spec} cannot be called with {', '.join(given) or 'nothing'}: {error}") from error
    except ValueError:
        pass  # a builtin without a signature: the call itself will tell
    with guarded(f"{spec} raised"):
        return factory(*arguments, **options)


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Whatever the user's code raises, but Ctrl-C, is a `GnnlabError` in one line that begins with `what`."""
    try:
        yield
    except (KeyboardInterrupt, OneLineError):
        raise
    except BaseException as error:
        raise GnnlabError(f"{what} {one_line(error)}{raised_at(error)}") from error


@contextmanager
def forked_random(seed: int | None = None) -> Iterator[None]:
    """Inside, torch draws on every device from `seed`, or as it likes; after it, from where it was."""
    import torch

    used = torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if used else ()):
        if seed is not None:
            torch.manual_seed(seed)
        yield
    if not used:  # no state was there: what torch.manual_seed had asked of CUDA is asked again
        torch.cuda.manual_seed_all(torch.initial_seed())
