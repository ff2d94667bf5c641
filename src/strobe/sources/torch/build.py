# SPDX-License-Identifier: Apache-2.0
"""The callback for PyTorch: callback.cpp, built for the version that is installed, and loaded."""

from __future__ import annotations

import ctypes
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from strobe.errors import CaptureError
from strobe.record import recorder
from strobe.sources import building
from strobe.sources.building import Plan

NO_TABLE = "the Python recorder has nothing that a callback could write to"
_CAPSULE = b"strobe.record._core.source"
_SOURCE = Path(__file__).with_name("callback.cpp")
_HEADER = Path(recorder.__file__).with_name("source.h")
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DNDEBUG")
# The RecordFunction interface that callback.cpp is written for.
_OLDEST = (2, 1)

_loaded: dict[str, Any] = {}


def load(*, build: bool = True, again: bool = False) -> Any:
    """Return the library, built first if need be and `build` allows it.

    torch must have been imported. Raises CaptureError, with the reason, when it cannot be had.
    `again`: try even if it failed before.
    """
    if "library" not in _loaded:
        try:
            plan = make_plan()
            _check_recorder()
            _loaded["library"] = building.provide(plan, _open, build=build, again=again)
        except OSError as error:
            message = f"it cannot be had ({error})"
            raise CaptureError(message) from error
    return _loaded["library"]


def foresee(plan: Plan, *, build: bool) -> Literal["built", "not built"]:
    """Say what load() would find, as far as it can be told without importing torch.

    Raises CaptureError when it would.
    """
    _check_recorder()
    return building.foresee(plan, build=build)


def make_plan() -> Plan:
    """Return what would be built, and where; raises CaptureError where nothing can be."""
    torch = _find_torch()
    text = (torch / "version.py").read_text(encoding="utf-8")
    version = _read_version(text)
    compiler = building.find_compiler()
    libraries = [torch / "lib" / name for name in ("libc10.so", "libtorch_cpu.so")]
    sizes = [library.stat().st_size for library in libraries if library.exists()]
    sources = [_SOURCE.read_text(encoding="utf-8"), _HEADER.read_text(encoding="utf-8")]
    facts = (str(torch), text, str(sizes), platform.machine(), str(_FLAGS), *sources)
    stem = f"torch-{version.partition('+')[0]}-{building.digest(*facts)}"
    return Plan(
        what=f"the callback for PyTorch {version}, once (10 to 20 s)",
        compiler=compiler,
        arguments=lambda: _arguments(torch),
        library=building.library_of(stem, compiler),
    )


def _check_recorder() -> None:
    if recorder.KIND != "C":
        raise CaptureError(NO_TABLE)


def _find_torch() -> Path:
    module = sys.modules.get("torch")
    spec = None if module else find_spec("torch")
    origin = module.__file__ if module else spec.origin if spec else None
    if origin is None:
        message = "PyTorch is not installed"
        raise CaptureError(message)
    return Path(origin).parent


def _read_version(text: str) -> str:
    """Return the version that torch/version.py states; raises CaptureError if it is too old."""
    found = re.search(r"^__version__ = ['\"](.+)['\"]$", text, re.MULTILINE)
    version = found[1] if found else "?"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST:
        message = f"PyTorch {version} is older than 2.1"
        raise CaptureError(message)
    return version


def _arguments(folder: Path) -> list[str]:
    import torch

    return [
        *_FLAGS,
        *(("-DUSE_DISTRIBUTED",) if torch.distributed.is_available() else ()),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-I{_HEADER.parent}",
        f"-I{folder / 'include'}",
        f"-I{folder / 'include/torch/csrc/api/include'}",
        *(str(_SOURCE), f"-L{folder / 'lib'}", "-lc10", "-ltorch_cpu"),
    ]


def _open(path: Path) -> Any:
    # PyDLL: the calls are short and must not be interrupted by another thread's.
    library = ctypes.PyDLL(str(path))
    library.strobe_torch_prepare.argtypes = [ctypes.c_void_p]
    library.strobe_torch_prepare.restype = ctypes.c_char_p
    library.strobe_torch_start.argtypes = [ctypes.c_uint32]
    library.strobe_torch_start.restype = ctypes.c_int
    library.strobe_torch_stop.restype = None
    pointer = ctypes.POINTER(ctypes.c_double)
    library.strobe_torch_calibrate.argtypes = [pointer]
    library.strobe_torch_calibrate.restype = ctypes.c_int
    library.strobe_torch_timed.restype = ctypes.c_double
    library.strobe_torch_make_room.restype = ctypes.c_int
    pointer_of = ctypes.PyDLL(None).PyCapsule_GetPointer  # not the one that others may set up
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    problem = library.strobe_torch_prepare(pointer_of(recorder.core.source, _CAPSULE))
    if problem:
        raise CaptureError(problem.decode())
    return library
