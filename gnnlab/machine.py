"""What the machine is, as far as the system tells without loading a framework."""

from __future__ import annotations

from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def cache_bytes() -> dict[int, int | None]:
    """Bytes of the second and third cache that the first core sees; None where the system does not tell (not Linux)."""
    sizes: dict[int, int | None] = {2: None, 3: None}
    for index in sorted(CACHES.glob("index*")):
        try:
            level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
            sizes[level] = int(size.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(size[-1], 1)
        except (OSError, ValueError):
            continue
    return {level: sizes[level] for level in (2, 3)}
