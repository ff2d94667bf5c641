# SPDX-License-Identifier: Apache-2.0
"""Files that appear when they are whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from strobe.store import files


@contextlib.contextmanager
def replacing(path: Path, *, through_links: bool = True) -> Iterator[Path]:
    """Give a path for a file that takes the name `path` at the end, or vanishes by an exception.

    What a link points to is replaced, not the link, unless it is not to be written
    `through_links`. A device or a pipe is then written to as it is: to take its name would take it
    from all other programs.
    """
    if through_links and path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    if through_links:
        path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(path) as part:
        yield part


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Open such a file."""
    with replacing(path) as part, part.open("wb") as file:
        yield file
