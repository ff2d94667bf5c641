# SPDX-License-Identifier: Apache-2.0
"""What is known of a recording as a whole."""

from __future__ import annotations

import re
from collections.abc import Mapping

from strobe.store.tables import Tables


def read_metadata(tables: Tables) -> dict[str, str]:
    """Return the table `metadata` as key and value, "" for null."""
    rows = tables.metadata().select("key", "value").collect()
    return {key: value or "" for key, value in rows.iter_rows() if key}


def read_number(metadata: Mapping[str, str], key: str) -> int | None:
    """Return a number of the metadata, None if it is not there or no integer of 64 bits."""
    text = metadata.get(key, "")
    number = int(text) if re.fullmatch(r"-?\d{1,19}", text) else None
    return number if number is not None and abs(number) < 1 << 63 else None
