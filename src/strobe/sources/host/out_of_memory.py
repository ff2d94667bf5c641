# SPDX-License-Identifier: Apache-2.0
"""Errors that tell that memory has run out: they are noted on their way, and go on unchanged."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from strobe.record.messages import show
from strobe.sources.held import tellers

# Frameworks say it in types of their own, or in the text of a RuntimeError.
_NAMES = ("OutOfMemoryError", "ResourceExhaustedError")
_TEXTS = re.compile(
    r"out of memory|can't allocate memory|not enough memory|memory not enough|RESOURCE_?EXHAUSTED"
    r"|memory isn't enough|alloc\w* (device )?memory failed",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Say whether an error tells that memory has run out."""
    if isinstance(error, MemoryError):
        return True
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and _TEXTS.search(str(error)) is not None


_MOST = 10
"""Owners and lines that are told, of each device."""


def count_held() -> list[dict[str, Any]]:
    """Return who holds memory now, as far as frameworks tell at once: for each device a sum.

    Keys: device (None for the host), bytes, owners: a list of owner, bytes, blocks, the largest
    first, the last one for all others.
    """
    rows = [row for tell in tuple(tellers.values()) for row in tell()]
    rows.sort(key=lambda row: row.bytes, reverse=True)
    found: list[dict[str, Any]] = []
    for device in sorted(
        {row.device for row in rows}, key=lambda number: -1 if number is None else number
    ):
        mine = [row for row in rows if row.device == device]
        owners = [(row.owner, row.bytes, row.blocks) for row in mine[:_MOST]]
        rest = mine[_MOST:]
        if rest:
            blocks = sum(row.blocks or 0 for row in rest)
            owners.append((f"({len(rest)} more owners)", sum(row.bytes for row in rest), blocks))
        found.append({"device": device, "bytes": sum(row.bytes for row in mine), "owners": owners})
    return found


def describe_held(held: list[dict[str, Any]]) -> Iterator[str]:
    """Yield it as lines for people."""
    for sums in held:
        where = "the host" if sums["device"] is None else f"device {sums['device']}"
        yield f"held on {where}: {sums['bytes'] / 1e6:,.1f} MB, by"
        for owner, size, blocks in sums["owners"]:
            yield f"  {size / 1e6:,.1f} MB{_in_blocks(blocks)}: {owner}"


def describe_lines(moment: dict[str, Any]) -> Iterator[str]:
    """Yield what lines of Python hold at a moment (see lines.py), those with 1 % or more of it."""
    yield f"held by lines of Python: {moment['bytes'] / 1e6:,.1f} MB, by"
    large = [line for line in moment["lines"] if line[2] * 100 >= moment["bytes"]]
    for file, line, size, blocks in large[:_MOST]:
        place = "(all further lines)" if file is None else f"{file}:{line}"
        yield f"  {size / 1e6:,.1f} MB{_in_blocks(blocks)}: {place}"


def _in_blocks(blocks: int | None) -> str:
    return "" if blocks is None else f" in {blocks:,} block{'s' * (blocks != 1)}"


class Hooks:
    """Sees errors that nobody caught; what hooks were there before are called as they would be."""

    def __init__(self, note: Callable[[BaseException], object]) -> None:
        self._note = note
        self._noted: int | None = None
        self._before: tuple[Any, Any] | None = None

    def attach(self) -> None:
        """See what reaches sys.excepthook and threading.excepthook."""
        if self._before is None:
            self._before = sys.excepthook, threading.excepthook
            sys.excepthook, threading.excepthook = self._of_program, self._of_thread

    def detach(self) -> None:
        """Put back what was there; what someone else has put there since stays theirs."""
        if self._before is None:
            return
        # Of a program that ends with it and has a hook of its own.
        self.see(getattr(sys, "last_value", None))
        if sys.excepthook == self._of_program:
            sys.excepthook = self._before[0]
        if threading.excepthook == self._of_thread:
            threading.excepthook = self._before[1]
        self._before = None
        self._noted = None

    def see(self, error: BaseException | None) -> None:
        """Note an error if it is one, each once."""
        if error is None or id(error) == self._noted or not is_out_of_memory(error):
            return
        self._noted = id(error)
        self._note(error)

    def _of_program(self, kind: Any, error: Any, trace: Any) -> Any:
        previous = self._before[0] if self._before else sys.__excepthook__
        self._see_safely(error)
        return previous(kind, error, trace)

    def _of_thread(self, arguments: Any) -> Any:
        previous = self._before[1] if self._before else threading.__excepthook__
        self._see_safely(arguments.exc_value)
        return previous(arguments)

    def _see_safely(self, error: BaseException | None) -> None:
        try:
            self.see(error)
        except MemoryError:  # not even enough to say so
            return
        except Exception as failure:  # the program's own error is on its way, and must arrive
            show(f"who holds memory is not recorded ({type(failure).__name__}: {failure})")
