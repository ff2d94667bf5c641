# SPDX-License-Identifier: Apache-2.0
"""What takes the shapes of operators from Paddle: supplements.cpp, built for the installed one."""

from __future__ import annotations

import ctypes
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError
from strobe.sources import building
from strobe.sources.building import Plan

_SOURCE = Path(__file__).with_name("supplements.cpp")
_STAND_INS = Path(__file__).with_name("include")
# The containers have no way to empty themselves that neither copies nor leaks: hence their insides.
# Nothing is hidden: the recorder must be the one of libphi, not one of our own.
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-access-control")
_HEADERS = ("common_event.h", "host_event_recorder.h")
_LIBRARIES = ("phi_core", "phi")

_loaded: dict[str, Any] = {}


def load(*, build: bool = True, again: bool = False) -> Any:
    """Return the library, built first if need be and `build` allows it.

    Paddle must have been imported. Raises CaptureError, with the reason, when it cannot be had.
    """
    if "library" not in _loaded:
        try:
            _loaded["library"] = building.provide(make_plan(), _open, build=build, again=again)
        except OSError as error:
            message = f"it cannot be had ({error})"
            raise CaptureError(message) from error
    return _loaded["library"]


def make_plan() -> Plan:
    """Return what would be built, and where; raises CaptureError where nothing can be."""
    paddle = _find_paddle()
    found = _version()
    compiler = building.find_compiler()
    headers = [paddle / "include/paddle/phi/api/profiler" / name for name in _HEADERS]
    try:
        texts = [path.read_text(encoding="utf-8") for path in (*headers, _SOURCE)]
    except FileNotFoundError as error:
        message = f"this build of Paddle lacks {Path(error.filename).name!r}"
        raise CaptureError(message) from None
    stem = f"paddle-{found}-{building.digest(str(paddle), platform.machine(), str(_FLAGS), *texts)}"
    return Plan(
        what=f"what takes the shapes of operators from Paddle {found}, once (about 5 s)",
        compiler=compiler,
        arguments=lambda: _arguments(paddle),
        library=building.library_of(stem, compiler),
    )


def _find_paddle() -> Path:
    spec = find_spec("paddle")
    if spec is None or spec.origin is None:
        message = "PaddlePaddle is not installed"
        raise CaptureError(message)
    return Path(spec.origin).parent


def _version() -> str:
    try:
        return version("paddlepaddle")
    except PackageNotFoundError:  # a build for a device has another name
        return "unknown"


def _arguments(paddle: Path) -> list[str]:
    folder = paddle / "libs"
    present = [name for name in _LIBRARIES if (folder / f"lib{name}.so").exists()]
    include = paddle / "include"
    return [
        *_FLAGS,
        *(f"-I{path}" for path in (include, include / "third_party", _STAND_INS)),
        *(str(_SOURCE), f"-L{folder}", *(f"-l{name}" for name in present)),
    ]


def _open(path: Path) -> Any:
    # PyDLL: no thread of Python's may be in Paddle meanwhile.
    library = ctypes.PyDLL(str(path))
    library.strobe_paddle_check.restype = ctypes.c_size_t
    library.strobe_paddle_forget.restype = None
    library.strobe_paddle_take.argtypes = [ctypes.c_char_p]
    library.strobe_paddle_take.restype = ctypes.c_int64
    library.strobe_paddle_check()
    return library
