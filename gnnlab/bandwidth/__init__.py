"""Transfer and compute times, and the time of a block at a size that nobody measured."""

from gnnlab.bandwidth.sweep import Measured, measure, read

__all__ = ["Measured", "measure", "read"]
