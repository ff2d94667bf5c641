# SPDX-License-Identifier: Apache-2.0
"""What frameworks' loaders tell of their batches: marks, of which the finalizer makes `batches`.

A strobe.watch around the same loader is the same batch, and gives it its name.
"""

from __future__ import annotations

from typing import Any

from strobe.model.marks import BATCH, FETCH
from strobe.record import recorder


def arrived(
    loader: str,
    since_ns: int,
    *,
    code: int,
    number: int | None = None,
    producer: tuple[int, int] | None = None,
    **facts: Any,
) -> None:
    """A batch has come, which was asked for at `since_ns` of the recorder's clock.

    Arguments:
        code: model.tables.record_code of the source that tells of it.
        number: its place in this pass over the loader, from 0.
        producer: process and key of who tells of it by fetched(), with this number; None for what
            was fetched in this thread meanwhile.
        facts: samples, queue (batches that were ready when it was asked for), worker.
    """
    told = {key: value for key, value in facts.items() if value is not None}
    if number is not None:
        told["number"] = number
    if producer is not None:
        told["producer"], told["key"] = producer
    recorder.core.source_instant(BATCH, code, loader=loader, since_ns=since_ns, automatic=1, **told)


def fetched(
    since_ns: int, *, code: int, key: int = 0, number: int | None = None, **facts: Any
) -> None:
    """A batch has been fetched since `since_ns`: who takes it tells by arrived().

    `facts`: worker, samples, collate_ns, cpu_ns (the processor time that it took).
    """
    told = {name: value for name, value in facts.items() if value is not None}
    if number is not None:
        told["number"] = number
    recorder.core.source_instant(FETCH, code, since_ns=since_ns, key=key, **told)
