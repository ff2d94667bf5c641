# SPDX-License-Identifier: Apache-2.0
"""Names of strobe's own threads: the Python that they run is not the program's."""

from __future__ import annotations

SAMPLER, TIMER, CONFIG = "strobe sampler", "strobe timer", "strobe config"
TABLES, FILES = "strobe tables", "strobe files"
OURS = frozenset({SAMPLER, TIMER, CONFIG, TABLES, FILES})
