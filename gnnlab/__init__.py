"""gnnlab: what a graph neural network costs on your machine, and what makes it faster."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    """`Lab` is loaded when it is first asked for: it needs pandas, matplotlib and Jupyter."""
    if name == "Lab":
        from gnnlab.lab.session import Lab

        return Lab
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
