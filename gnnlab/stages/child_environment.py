"""The environment of a process that measures or executes stages.

It keeps the memory that it freed, in huge pages where the system grants them. Otherwise the C library gives the memory
of each large result back, or does not, by what the process did before; the next call then takes new pages from the
kernel, on a virtual machine from the host as well, and the same stage on the same arrays took 2 ms or 54. Runtimes with
an allocator of their own keep theirs anyway. The settings are those of the GNU C library; other systems ignore them.
What the caller's own environment sets stays as it is.
"""

from __future__ import annotations

import os
import sys

KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def child_environment(**settings: str) -> dict[str, str]:
    """This process's environment with its module path, kept memory and `settings`.

    torch.compile builds in the process itself, and ends with it.
    """
    path = os.pathsep.join(entry or str(os.curdir) for entry in sys.path)
    fixed = {"PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return {**KEEP_MEMORY, **os.environ, **fixed, **settings}
