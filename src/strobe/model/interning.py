# SPDX-License-Identifier: Apache-2.0
"""Numbers for distinct values."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

Value = TypeVar("Value", bound=Hashable)


class Interner(dict[Value, int]):
    """Numbers values from 0 in the order in which they are first asked for: `interner[value]`.

    `list(interner)` is the values by number.
    """

    def __missing__(self, value: Value) -> int:
        """Give a value the next number."""
        number = self[value] = len(self)
        return number
