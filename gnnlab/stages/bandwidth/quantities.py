"""Bandwidth as a type, so that bytes/s never meets MB/s: no plain number can be compared with it or added to it.

    Bandwidth.of(moved_bytes=8e6, ms=1.0)             # 8 GB/s
    Bandwidth.from_mb_s(15_000).ms(size_bytes=4e6)    # how long 4 MB take

KB, MB and GB are powers of 1000, MiB is 2**20 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gnnlab.stages.errors import StageError


@dataclass(frozen=True, order=True)
class Bandwidth:
    """Bytes moved in a second; in a copy, those read and those written both count."""

    bytes_per_s: float

    def __post_init__(self) -> None:
        value = self.bytes_per_s
        if isinstance(value, (bool, Bandwidth)) or not (math.isfinite(value) and value > 0):
            raise StageError(f"bandwidth of {value!r} bytes/s; a positive number is needed")

    @classmethod
    def of(cls, moved_bytes: float, ms: float) -> Bandwidth:
        """Of what moves so many bytes in so many ms."""
        if not ms > 0:
            raise StageError(f"bandwidth of {moved_bytes:g} bytes in {ms:g} ms; a time above 0 is needed")
        return cls(moved_bytes / ms * 1e3)

    @classmethod
    def from_mb_s(cls, mb_s: float) -> Bandwidth:
        return cls(mb_s * 1e6)

    @property
    def mb_s(self) -> float:
        return self.bytes_per_s / 1e6

    @property
    def gb_s(self) -> float:
        return self.bytes_per_s / 1e9

    @property
    def mib_s(self) -> float:
        return self.bytes_per_s / 2**20

    def ms(self, size_bytes: float) -> float:
        """How long so many bytes take."""
        return size_bytes / self.bytes_per_s * 1e3

    def __truediv__(self, other: Any) -> float:
        """How many times the other one."""
        return self.bytes_per_s / other.bytes_per_s if isinstance(other, Bandwidth) else NotImplemented
