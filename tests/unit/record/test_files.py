# SPDX-License-Identifier: Apache-2.0
"""How both recorders write the files of a round."""

import fcntl
import importlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

KINDS = ["_python", *(["_core"] if find_spec("strobe.record._core") else [])]


@pytest.fixture(params=KINDS)
def core(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"strobe.record.{request.param}")


def test_a_file_is_replaced_as_a_whole(core: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old and longer")

    core.replace_file(str(tmp_path / "part"), str(tmp_path / "file"), b"new\0")

    assert (tmp_path / "file").read_bytes() == b"new\0"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_replaced_leaves_no_part(core: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "inner").mkdir()

    with pytest.raises(OSError, match="taken"):
        core.replace_file(str(tmp_path / "part"), str(tmp_path / "taken"), b"new")

    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_past_the_size_limit_fails_and_does_not_kill(tmp_path: Path) -> None:
    if "_core" not in KINDS:
        pytest.skip("strobe.record._core is not built")
    program = (
        "import resource, signal, sys; from strobe.record import _core\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\n"
        "try: _core.replace_file(sys.argv[1] + '.part', sys.argv[1], b'x' * 100)\n"
        "except OSError as error: print(error.strerror)\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout == "File too large\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_once(core: ModuleType, tmp_path: Path) -> None:
    core.make_folder(str(tmp_path / "folder"))

    assert (tmp_path / "folder").is_dir()
    with pytest.raises(FileExistsError):
        core.make_folder(str(tmp_path / "folder"))
    with pytest.raises(FileNotFoundError):
        core.make_folder(str(tmp_path / "missing" / "folder"))


def test_a_folder_is_private_if_it_is_no_link_and_closed_to_others(
    core: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o750)
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    answers = [
        core.is_private_folder(str(tmp_path / name)) for name in ("mine", "open", "link", "none")
    ]

    assert answers == [True, False, False, False]


def test_a_lock_that_somebody_holds_is_seen(core: ModuleType, tmp_path: Path) -> None:
    free = core.is_locked(str(tmp_path / "lock"))
    with (tmp_path / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = core.is_locked(str(tmp_path / "lock"))

    assert (free, held) == (False, True)
    assert core.is_locked(str(tmp_path / "lock")) is False
