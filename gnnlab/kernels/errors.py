"""The error of this package: one clear line that says what was given, what is allowed and what to do."""

from __future__ import annotations


class OptimizeError(ValueError):
    """A graph, a layer or a model that a fast form cannot be had for."""
