# SPDX-License-Identifier: Apache-2.0
"""Builds callback.cpp for the installed PyTorch, once per user, and loads it.

The library is kept under its key: whatever decides its code is in it (torch, compiler, sources,
machine). Processes that want it at the same time wait for the one that builds. A build that failed
is remembered, so that all processes of a job take the same path.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError
from strobe.record import recorder

CACHE_VARIABLE = "STROBE_CACHE"
_CAPSULE = b"strobe.record._core.source"
_BUILD_SECONDS = 300
_SOURCE = Path(__file__).with_name("callback.cpp")
_HEADER = Path(recorder.__file__).with_name("source.h")
# The RecordFunction interface that callback.cpp is written for.
_OLDEST = (2, 1)

_loaded: dict[str, Any] = {}


def load(*, build: bool = True, again: bool = False) -> Any:
    """Return the library, built first if need be and `build` allows it.

    Raises CaptureError, with the reason, when it cannot be had. `again`: try even if it failed
    before.
    """
    if "library" not in _loaded:
        _loaded["library"] = _open(_provide(build=build, again=again))
    return _loaded["library"]


def is_built() -> bool:
    """Say whether it is there already."""
    try:
        return _library_path(_compiler()).exists()
    except CaptureError:
        return False


def _provide(*, build: bool, again: bool) -> Path:
    import torch

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _OLDEST:
        message = f"PyTorch {torch.__version__} is older than 2.1"
        raise CaptureError(message)
    compiler = _compiler()
    path = _library_path(compiler)
    failed = path.with_suffix(".failed")
    _check_owner(path.parent)
    with _locked(path.with_suffix(".lock")):
        if path.exists():
            _check_owner(path)
            return path
        if failed.exists() and not again:
            message = f"it could not be built: {failed.read_text().strip()}"
            raise CaptureError(message)
        if not build:
            message = "building it is forbidden and it has not been built (strobe doctor --build)"
            raise CaptureError(message)
        _build(compiler, path, failed)
    return path


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    message = "there is no C++ compiler (c++, g++, clang++, or CXX)"
    raise CaptureError(message)


def _library_path(compiler: str) -> Path:
    import torch

    program = Path(compiler).stat()
    facts = [
        torch.__version__,
        torch.version.git_version,
        str(torch._C._GLIBCXX_USE_CXX11_ABI),
        str(Path(torch.__file__).parent),
        *(compiler, str(program.st_size), str(program.st_mtime_ns), platform.machine()),
        _SOURCE.read_text(),
        _HEADER.read_text(),
    ]
    key = hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]
    return _cache() / f"torch-{torch.__version__.partition('+')[0]}-{key}.so"


def _cache() -> Path:
    """Return the folder of built libraries, made with the owner's permissions alone."""
    given = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(given) if given else Path(home) / "strobe"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"its folder {str(folder)!r} cannot be made ({error.strerror})"
        raise CaptureError(message) from None
    return folder


def _check_owner(path: Path) -> None:
    """Refuse what another user could have written: it would run as code in this process."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = f"{str(path)!r} can be written by others: chmod go-w it, or set {CACHE_VARIABLE}"
        raise CaptureError(message)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        message = f"{str(path.parent)!r} cannot be written ({error.strerror})"
        raise CaptureError(message) from None
    try:
        # Not for ever: who holds it may hang on a network file system.
        deadline = time.monotonic() + _BUILD_SECONDS + 30
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"another process has been building it for {_BUILD_SECONDS} s"
                    raise CaptureError(message) from None
                time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _build(compiler: str, path: Path, failed: Path) -> None:
    import torch

    say(f"building the callback for PyTorch {torch.__version__}, once (10 to 20 s)")
    part = path.with_suffix(f".{os.getpid()}.part")
    root = Path(torch.__file__).parent
    command = [
        *(compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG"),
        *(("-DUSE_DISTRIBUTED",) if torch.distributed.is_available() else ()),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{_HEADER.parent}",
        f"-I{root / 'include'}",
        f"-I{root / 'include/torch/csrc/api/include'}",
        *(str(_SOURCE), "-o", str(part), f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS
        )
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        problem = (errors or [f"{compiler} failed"])[0] if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if not problem:
        part.chmod(0o700)
        part.replace(path)
        failed.unlink(missing_ok=True)
        return
    part.unlink(missing_ok=True)
    failed.write_text(problem + "\n")
    message = f"it could not be built: {problem}"
    raise CaptureError(message)


def _open(path: Path) -> Any:
    try:
        # PyDLL: the calls are short and must not be interrupted by another thread's.
        library = ctypes.PyDLL(str(path))
        library.strobe_torch_prepare.argtypes = [ctypes.c_void_p]
        library.strobe_torch_prepare.restype = ctypes.c_char_p
        library.strobe_torch_start.argtypes = [ctypes.c_uint32]
        library.strobe_torch_start.restype = ctypes.c_int
        library.strobe_torch_stop.restype = None
    except (OSError, AttributeError) as error:
        message = f"{str(path)!r} cannot be loaded ({error})"
        raise CaptureError(message) from None
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    problem = library.strobe_torch_prepare(pointer_of(recorder.core.source, _CAPSULE))
    if problem:
        raise CaptureError(problem.decode())
    return library


def say(text: str) -> None:
    """Show one line to the user."""
    if sys.stderr is not None:
        print(f"strobe: {text}", file=sys.stderr, flush=True)
