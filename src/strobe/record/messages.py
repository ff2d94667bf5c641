# SPDX-License-Identifier: Apache-2.0
"""What strobe says to the user of a profiled program: single lines on standard error."""

from __future__ import annotations

import sys


def show(text: str) -> None:
    """Say something; a program that has closed its standard error hears nothing."""
    if sys.stderr is None:
        return  # print would take standard output, which is the program's
    try:
        print(f"strobe: {text}", file=sys.stderr, flush=True)
    except (AttributeError, OSError, ValueError):
        return  # the program has closed it, or put something else there
