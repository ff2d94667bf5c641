# SPDX-License-Identifier: Apache-2.0
"""The finalizer process with all that it may be asked to write."""

from __future__ import annotations

from strobe.finalize import process
from strobe.session import mindspore_tree


def main() -> None:
    """Finalize what waits."""
    process.main({mindspore_tree.FORMAT: lambda path, _: mindspore_tree.complete(path)})
