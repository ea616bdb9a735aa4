"""The user's own models and units, named `module:factory`: in the current folder, or installed.

with importable():
    made = call("my_models:make", load("my_models:make"), data)
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnnlab.errors import GnnlabError, meant
from gnnswap.errors import OneLineError, one_line, quoted


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
    module, colon, name = spec.rpartition(":")
    if not colon:
        raise GnnlabError(f"{quoted(spec)} names no function; write module:function, as in my_models:make")
    return _factory(spec, _imported(module), name)


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
        raise GnnlabError(f"{what} {one_line(error)}") from error


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


def is_there(spec: str) -> bool:
    """Does `module:factory` name a module that could be imported? Nothing is imported."""
    return _origin(spec.partition(":")[0].partition(".")[0]) is not None


def require(spec: str) -> None:
    """Raises `GnnlabError`, in one line and without importing anything, where there is no such module, or its source
    does not hold the name of the function."""
    module, _, name = spec.rpartition(":")
    if not is_there(spec):
        load(spec)
    source = Path((_origin(module) if "." not in module else None) or "")
    text = source.read_text(encoding="utf-8", errors="replace") if source.suffix == ".py" else name
    if not re.search(rf"\b{re.escape(name)}\b|import \*|__getattr__", text):
        raise _no_factory(module, name, re.findall(r"^(?:def|class) ([^\W_]\w*)", text, re.MULTILINE))


def _origin(module: str) -> str | None:
    """Where a module would be imported from: a file, or another place; None where there is none."""
    with importable():
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError):
            return None
    return spec and (spec.origin or "a folder")


def files_of(module: str, folder: Path) -> list[Path]:
    """The file of a module that lies in `folder`, or those of a package; none of a module that is installed."""
    place = folder.joinpath(*module.split("."))
    file = place.with_name(f"{place.name}.py")
    return [path.resolve() for path in ([file] if file.is_file() else sorted(place.rglob("*.py")))]


def _imported(name: str) -> Any:
    if not all(part.isidentifier() for part in name.split(".")):
        raise GnnlabError(f"{quoted(name)} is no name of a module; write module:factory, as in my_models:make")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            here = Path.cwd()
            raise GnnlabError(f"there is no module {name}: neither installed nor as a file in {here}") from error
        raise GnnlabError(f"module {name} needs {error.name}, which is not installed") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's code, which may raise anything
        raise GnnlabError(f"module {name} cannot be imported: {one_line(error)}") from error


def _factory(spec: str, module: Any, name: str) -> Callable[..., Any]:
    factory = getattr(module, name, None)
    if callable(factory):
        return factory
    if factory is not None:
        raise GnnlabError(f"{spec}: {name} is no function or class but {quoted(factory)}; name one that makes it")
    public = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    own = [key for key, value in public.items() if getattr(value, "__module__", "") == module.__name__]
    raise _no_factory(module.__name__, name, own or public)


def _no_factory(module: str, name: str, offered: Iterable[str]) -> GnnlabError:
    offered = sorted(offered)
    there = ", ".join(offered[:5]) or "none"
    return GnnlabError(f"module {module} has no factory {quoted(name)}{meant(name, offered)}; it has {there}")
