# SPDX-License-Identifier: Apache-2.0
"""Who can tell at once who holds a framework's memory: asked when there is no more of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Held(NamedTuple):
    """What an owner holds on a device."""

    owner: str
    device: int | None
    """None for the host."""
    blocks: int | None
    """None where the framework tells only of bytes."""
    bytes: int


tellers: dict[str, Callable[[], list[Held]]] = {}
"""By source: those that record memory now."""
