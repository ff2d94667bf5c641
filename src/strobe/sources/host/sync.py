# SPDX-License-Identifier: Apache-2.0
"""sync_enable: let the host wait for each operator on a device, so that its time is its own."""

from __future__ import annotations

import os
import sys

VARIABLE = "CUDA_LAUNCH_BLOCKING"

NO_DEVICE = "there is no NVIDIA device here; an operator on the CPU is timed to its end anyway"
_TOO_LATE = (
    f"CUDA runs in this process already and reads {VARIABLE} at its start only; start the profiler "
    "before the device is first used"
)


class Blocking:
    """Sets the variable that CUDA reads when it starts, and puts back what was there."""

    def __init__(self) -> None:
        self._held = False
        self._before: str | None = None

    def hold(self) -> str | None:
        """Set it; return why that would be in vain, None if it is not."""
        if self._held or os.environ.get(VARIABLE) == "1":
            return None
        if _cuda_runs():
            return _TOO_LATE
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = "1"
        self._held = True
        return None

    def release(self) -> None:
        """Put back what was there. A CUDA that has started meanwhile goes on to block."""
        if self._held:
            self._held = False
            if self._before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = self._before


def _cuda_runs() -> bool:
    """Say whether the device is in use, as far as the imported frameworks tell."""
    torch = sys.modules.get("torch")
    is_initialized = getattr(getattr(torch, "cuda", None), "is_initialized", None)
    return bool(is_initialized and is_initialized())
