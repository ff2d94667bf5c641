# SPDX-License-Identifier: Apache-2.0
"""The attributes of spans and instants: JSON objects, and every key in them that code reads.

All other keys are for people only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strobe.model.phases import NONE, UNKNOWN
from strobe.model.tables import PHASES

# What sources and frameworks say about a span.
PHASE = "phase"
"""The part of the training step that it belongs to; null if the source states it is unknown."""
ENDS = "ends"
"""What ends with it, one of ENDINGS."""
STEP = "step_num"
"""The number of the step that it is."""
PROGRAM = "hlo_module"
"""The program that an operator was compiled into, which may span several phases."""

TYPE = "type"
"""The framework's own type for it: a layer's class, an event type of Paddle's."""
FULL_NAME = "full_name"
"""The name with all its scopes, if the framework has a shorter one too."""

# What sources and frameworks say about an operator.
SHAPES, DTYPES, INPUTS = "shapes", "dtypes", "inputs"
"""Shape, type and name of each input."""
CONCRETE = "concrete"
"""The values of inputs that are not tensors."""

# About an exchange of data with other processes.
COLLECTIVE = "collective"
"""What it does: all_reduce, send, ..."""
GROUP, BYTES, DTYPE = "group", "bytes", "dtype"
SYNCHRONOUS = "synchronous"
"""Whether it returns only when all is done."""
REPLICAS = "replica_groups"
WAITED = "rendezvous_wait_ns"

# About a call of a Python function.
FILE, LINE, MODULE = "file", "line", "module"

# About a mark or range of mstx.
DOMAIN = "domain"

# About the instant at which memory ran out.
ERROR, MESSAGE, RESIDENT = "error", "message", "resident_bytes"
HELD = "held"
"""Who held memory then: a list of `device`, `bytes` and `owners`."""

ENDINGS = ("step", "data")
"""A step of the program, or the data of a loader."""
STATED = (PHASE, ENDS, STEP, PROGRAM)
"""Keys for which `Spans` has a column, and from which the tables are derived."""
IN_TABLE = (TYPE, FULL_NAME)
"""Keys for which the table of spans has a column too, so that the JSON leaves them out."""
WITH_COLUMNS = (*STATED, *IN_TABLE)


def without_columns(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that the table of spans has no column for."""
    return {
        key: value
        for key, value in content.items()
        if key not in IN_TABLE or not isinstance(value, str)
    }


def phase(content: Mapping[str, Any]) -> int:
    """Return the phase that these attributes name, as a place in PHASES, or NONE or UNKNOWN."""
    named = content.get(PHASE, "")
    if named in PHASES:
        return PHASES.index(named)
    return UNKNOWN if named is None or PROGRAM in content else NONE


def ending(content: Mapping[str, Any]) -> int:
    """Return what ends with the span, as a place in ENDINGS, -1 for nothing."""
    named = content.get(ENDS)
    return ENDINGS.index(named) if named in ENDINGS else -1


def step(content: Mapping[str, Any]) -> int:
    """Return the number of the step that the span is, -1 for none."""
    number = content.get(STEP)
    return number if isinstance(number, int) and 0 <= number < 1 << 63 else -1
