"""Transfer and compute times, and the time of a block at a size that nobody measured."""
