# SPDX-License-Identifier: Apache-2.0
"""The error tree.

StrobeError
├── UsageError (ValueError)     a call with an argument that cannot be right
├── StateError (RuntimeError)   a call that does not fit what went before
├── CaptureError                recording cannot be done here
├── FormatError                 a file is not what it should be
└── CommandError                a command ends with this exit code
"""

from __future__ import annotations

import os

__all__ = [
    "CaptureError",
    "CommandError",
    "FormatError",
    "StateError",
    "StrobeError",
    "UsageError",
]


class StrobeError(Exception):
    """What all errors of strobe are."""


class UsageError(StrobeError, ValueError):
    """A call with an argument that cannot be right."""


class StateError(StrobeError, RuntimeError):
    """A call that does not fit what went before."""


class CaptureError(StrobeError):
    """Recording cannot be done here."""


class FormatError(StrobeError):
    """A file is not what it should be: `path`, `where` in it, and the `reason`."""

    def __init__(self, path: str | os.PathLike[str], where: str, reason: str) -> None:
        super().__init__(f"{os.fspath(path)!r}, {where}: {reason}")
        self.path = path
        self.where = where
        self.reason = reason


class CommandError(StrobeError):
    """A command ends with `exit_code` and this message."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
