# SPDX-License-Identifier: Apache-2.0
"""Files that appear when they are whole, and what is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from strobe.exporters.files import new_file


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace"

    def write(*parts: bytes) -> None:
        with new_file(path) as file:
            file.writelines(parts)

    with pytest.raises(TypeError):
        write(b"half", None)  # type: ignore[arg-type]
    assert list(path.parent.iterdir()) == []
    write(b"whole")
    assert [each.read_bytes() for each in path.parent.iterdir()] == [b"whole"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)

    for content in (b"first", b"second"):
        with new_file(link) as file:
            file.write(content)

    assert link.is_symlink()
    assert target.read_bytes() == b"second"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    with new_file(pipe) as file:
        file.write(b"content")

    assert os.read(reader, 100) == b"content"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    os.close(reader)
