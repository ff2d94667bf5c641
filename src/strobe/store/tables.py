# SPDX-License-Identifier: Apache-2.0
"""The tables of one directory, whoever wrote them. Imports Polars when a table is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


class Tables:
    """A directory of tables; each method reads its file when the frame is collected.

    Every method raises FormatError if the table's file is missing or no regular file.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    @property
    def directory(self) -> Path:
        """Where the tables are."""
        return self._directory

    def scan(self, table: str) -> pl.LazyFrame:
        """Return a table by its name in docs/tables.md."""
        from strobe.store.frames import scan

        return scan(self.directory, table)

    def spans(self) -> pl.LazyFrame:
        """One row per span, by start; see docs/tables.md for the columns."""
        return self.scan("spans")

    def steps(self) -> pl.LazyFrame:
        """One row per step or request; leave the unfinished ones out of averages."""
        return self.scan("steps")

    def instants(self) -> pl.LazyFrame:
        """One row per strobe.instant."""
        return self.scan("instants")

    def counters(self) -> pl.LazyFrame:
        """One row per strobe.counter."""
        return self.scan("counters")

    def links(self) -> pl.LazyFrame:
        """Pairs of spans of which one led to the other (docs/tables.md)."""
        return self.scan("links")

    def allocations(self) -> pl.LazyFrame:
        """Memory that a framework allocated and freed (docs/tables.md)."""
        return self.scan("allocations")

    def memory_lines(self) -> pl.LazyFrame:
        """What lines of Python held, at a few moments (docs/tables.md)."""
        return self.scan("memory_lines")

    def collectives(self) -> pl.LazyFrame:
        """Communication with other processes (docs/tables.md)."""
        return self.scan("collectives")

    def batches(self) -> pl.LazyFrame:
        """Batches that loaders handed out, and the wait for each (docs/tables.md)."""
        return self.scan("batches")

    def stacks(self) -> pl.LazyFrame:
        """One row per distinct stack of Python calls (docs/tables.md)."""
        return self.scan("stacks")

    def frames(self) -> pl.LazyFrame:
        """One row per function in a stack."""
        return self.scan("frames")

    def samples(self) -> pl.LazyFrame:
        """One row per thread and instant at which its stack was sampled."""
        return self.scan("samples")

    def threads(self) -> pl.LazyFrame:
        """One row per lane: a thread, or one Python context of a thread."""
        return self.scan("threads")

    def metadata(self) -> pl.LazyFrame:
        """What is known of the recording as a whole: key, value."""
        return self.scan("metadata")
