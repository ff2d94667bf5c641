# SPDX-License-Identifier: Apache-2.0
"""How complete a recording is."""

from __future__ import annotations

import polars as pl

from strobe.store.tables import Tables


def completeness(tables: Tables) -> pl.DataFrame:
    """One row per source: asked, collected, dropped, unfinished, the profiler's own time."""
    return tables.scan("completeness").collect()
