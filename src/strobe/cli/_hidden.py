# SPDX-License-Identifier: Apache-2.0
"""The verbs that processes of our own are started with. No person needs them, so --help has none.

They import no Typer, which would take longer than the rest of their start.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from strobe.errors import UsageError

if TYPE_CHECKING:
    from strobe.finalize.process import Order


def finalize(arguments: list[str]) -> None:
    """Finalize the recordings that wait for it; finalize/process.py starts this."""
    if arguments:
        message = (
            f"_finalize {' '.join(arguments)}: takes no arguments; strobe starts it by itself, and "
            "strobe.open() writes the tables of a recording that has none"
        )
        raise UsageError(message)
    from strobe.finalize.process import take_orders
    from strobe.store import places, rounds

    if not sum(1 for _ in map(carry_out, take_orders())):
        print("no recording waits to be finalized")
    rounds.remove_stale(places.runtime_directory())


def carry_out(order: Order) -> None:
    """Finalize one recording. A failure is kept in it, and does not stop the others."""
    from strobe.finalize.process import keep_failure
    from strobe.session import finalizer

    try:
        finalizer.carry_out(order)
    except Exception:  # the edge of this process: no one else would see it
        keep_failure(order.recording, traceback.format_exc())


def analyse(arguments: list[str]) -> None:
    """Write MindSpore's files of one recording; session/mindspore_offline.py starts this."""
    from strobe.session import mindspore_offline

    mindspore_offline.main(arguments)


VERBS: Mapping[str, Callable[[list[str]], None]] = {"_finalize": finalize, "_analyse": analyse}
