# SPDX-License-Identifier: Apache-2.0
"""The finalizer process with all that it may be asked to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strobe.finalize import process


def main() -> None:
    """Finalize what waits."""
    process.main({"mindspore": _write_tree})


def _write_tree(recording: Path, _declaration: dict[str, Any]) -> None:
    from strobe.session.mindspore_tree import complete

    complete(recording)
