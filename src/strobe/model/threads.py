# SPDX-License-Identifier: Apache-2.0
"""Names of strobe's own threads: the Python that they run is not the program's."""

from __future__ import annotations

SAMPLER, TIMER, TABLES, CONFIG = "strobe sampler", "strobe timer", "strobe tables", "strobe config"
OURS = frozenset({SAMPLER, TIMER, TABLES, CONFIG})
