# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per verb. It prints; the rooms below compute.

Exit codes: 0 done, 1 it could not be done (one line on standard error says why), 2 wrong usage,
130 interrupted.
"""

from __future__ import annotations

import sys

from strobe.cli._hidden import VERBS
from strobe.errors import CommandError, StrobeError, UsageError


def main() -> None:
    """Run the command line; an error of ours becomes one line and an exit code."""
    try:
        _run()
    except StrobeError as error:
        print(f"strobe: {error}", file=sys.stderr)
        sys.exit(_exit_code(error))


def _run() -> None:
    verb, *arguments = sys.argv[1:] or [""]
    if verb in VERBS:
        VERBS[verb](arguments)
        return
    from strobe.cli._app import app  # with Typer, which takes a tenth of a second

    app()


def _exit_code(error: StrobeError) -> int:
    if isinstance(error, CommandError):
        return error.exit_code
    return 2 if isinstance(error, UsageError) else 1
