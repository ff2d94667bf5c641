# SPDX-License-Identifier: Apache-2.0
"""How the names of strobe's own threads begin: the Python that they run is not the program's."""

from __future__ import annotations

SAMPLER, TIMER, CONFIG = "strobe sampler", "strobe timer", "strobe config"
TABLES, FILES = "strobe tables", "strobe files"
OURS = (SAMPLER, TIMER, CONFIG, TABLES, FILES)
