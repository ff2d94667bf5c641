# SPDX-License-Identifier: Apache-2.0
"""Which kinds of accelerators this machine has, told without importing a framework."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    "GPU": ("nvidia[0-9]*", "kfd", "dxg"),
    "XPU": ("xpu[0-9]*",),
    "CUSTOM_DEVICE": ("davinci[0-9]*", "cambricon_dev[0-9]*"),
}
"""What their drivers put into /dev."""


def has_device(kind: str) -> bool:
    """Say whether there is one of this kind."""
    folder = Path("/dev")
    return any(next(folder.glob(name), None) is not None for name in _FILES[kind])
