"""The one OpenVINO core of this process.

Each core installs a stack for signal handlers when its CPU plugin loads, and puts back the one before it when it goes
(OpenVINO 2026.4, `SigAltStackSetup` in its CPU plugin). Cores that do not go in the reverse order in which they came
leave a stack behind that is no longer there, and the next handled signal, such as the end of a DataLoader's worker,
ends the process. One core that stays cannot.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openvino


@cache
def openvino_core() -> openvino.Core:
    """Made at the first call, kept to the end of the process. Raises ImportError where OpenVINO is not installed."""
    import openvino

    return openvino.Core()
