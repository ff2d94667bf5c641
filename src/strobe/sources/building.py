# SPDX-License-Identifier: Apache-2.0
"""Builds what has to be compiled for an installed framework, once per user, and loads it.

A library is kept under its key: whatever decides its code is in it (framework, compiler, sources,
machine). Processes that want it at the same time wait for the one that builds. A build that failed
is remembered, so that all processes of a job take the same path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from strobe.errors import CaptureError, UsageError
from strobe.record import source
from strobe.record.messages import show
from strobe.record.source import CACHE_VARIABLE

BUILD_VARIABLE = "STROBE_BUILD_CALLBACK"
BUILD_SECONDS = 300
COMMAND = "strobe doctor --build"
_SEAL_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is built of what; made without importing the framework."""

    what: str
    """For people: `the callback for PyTorch 2.13.0, once (10 to 20 s)`."""
    compiler: tuple[str, ...]
    """The command, with the arguments that CXX may have; empty if there is none."""
    arguments: Callable[[], list[str]]
    """What to give it beside the file to write."""
    library: Path

    @property
    def failed(self) -> Path:
        """Where it says why the library could not be built."""
        return self.library.with_suffix(".failed")


def provide(plan: Plan, load: Callable[[Path], Any], *, build: bool, again: bool) -> Any:
    """Return what `load` makes of the library, built first if need be and `build` allows it.

    Raises CaptureError, with the reason, when it cannot be had. `again`: try even if it failed
    before.
    """
    library = _reuse(plan, load)
    if library is not None:
        return library
    _check_can_build(plan, build=build, again=again)
    with _locked(plan.library.with_suffix(".lock")):
        library = _reuse(plan, load)
        if library is None:
            _check_can_build(plan, build=build, again=again)
            library = _build(plan, load)
    return library


def foresee(plan: Plan, *, build: bool) -> Literal["built", "not built"]:
    """Say what provide() would find, as far as it can be told without the framework.

    Raises CaptureError when it would.
    """
    if plan.library.exists():
        _check_owner(plan.library)
        if _is_whole(plan.library):
            return "built"
    _check_can_build(plan, build=build, again=False)
    if not os.access(plan.library.parent, os.W_OK):
        raise _not_writable(plan.library.parent, os.strerror(errno.EACCES))
    return "not built"


def may_build() -> bool:
    """Say whether the user allows a build; raises UsageError when that cannot be told."""
    value = os.environ.get(BUILD_VARIABLE, "")
    if value not in ("", "0", "1"):
        message = f"{BUILD_VARIABLE}={value!r}: must be '0' or '1', or not be set"
        raise UsageError(message)
    return value != "0"


def cache_folder() -> Path:
    """Return the folder of built libraries; raises CaptureError when there is no place for it."""
    try:
        return source.cache_folder()
    except FileNotFoundError as error:
        raise CaptureError(str(error)) from None


def find_compiler() -> tuple[str, ...]:
    """Return the C++ compiler's command, () if there is none; raises CaptureError if CXX is not."""
    wanted = os.environ.get("CXX")
    if wanted:
        name, *arguments = shlex.split(wanted) or [wanted]
        found = shutil.which(name)
        if found is None:
            message = f"CXX={wanted!r} is not a program"
            raise CaptureError(message)
        return (found, *arguments)
    return next(((path,) for path in map(shutil.which, ("c++", "g++", "clang++")) if path), ())


def library_of(stem: str, compiler: tuple[str, ...]) -> Path:
    """Return where it is kept; raises CaptureError when there is no place for it.

    `stem` names it: the framework, its version, and a digest of all but the compiler.
    """
    folder = _make_cache()
    if compiler:
        program = Path(compiler[0]).stat()
        key = digest(*compiler, str(program.st_size), str(program.st_mtime_ns))
        return folder / f"{stem}-{key}.so"
    # Built ahead and taken here without its compiler, as an image of a container may be.
    built = sorted(folder.glob(f"{stem}-*.so"))
    return built[0] if built else folder / f"{stem}-none.so"


def digest(*facts: str) -> str:
    """Return what stands for these facts in a name."""
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _reuse(plan: Plan, load: Callable[[Path], Any]) -> Any:
    """Return the library that is there; None if there is none, or one that cannot be loaded."""
    if not plan.library.exists():
        return None
    _check_owner(plan.library)
    if not _is_whole(plan.library):
        return None
    try:
        return load(plan.library)
    except (OSError, AttributeError):
        return None  # another one takes its place


def _check_can_build(plan: Plan, *, build: bool, again: bool) -> None:
    if not again:
        with contextlib.suppress(FileNotFoundError):
            problem = plan.failed.read_text(encoding="utf-8", errors="replace").strip()
            raise _not_built(problem)
    if not build:
        message = f"{BUILD_VARIABLE}=0 and it has not been built ahead ({COMMAND})"
        raise CaptureError(message)
    if not plan.compiler:
        message = "there is no C++ compiler (c++, g++, clang++, or CXX)"
        raise CaptureError(message)


def _not_built(problem: str) -> CaptureError:
    return CaptureError(f"it could not be built: {problem} ({COMMAND} tries again)")


def _make_cache() -> Path:
    """Return the folder of built libraries, made with the owner's permissions alone."""
    folder = cache_folder()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = f"its folder {str(folder)!r} cannot be made ({error.strerror})"
        raise CaptureError(message) from None
    _check_owner(folder)
    return folder


def _check_owner(path: Path) -> None:
    """Refuse what another user could have written: it would run as code in this process."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        message = (
            f"{str(path)!r} belongs to another user: set {CACHE_VARIABLE} to a folder of yours"
        )
        raise CaptureError(message)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = f"{str(path)!r} can be written by others: chmod go-w it, or set {CACHE_VARIABLE}"
        raise CaptureError(message)


def _not_writable(folder: Path, reason: str | None) -> CaptureError:
    return CaptureError(f"{str(folder)!r} cannot be written ({reason}): set {CACHE_VARIABLE}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_writable(path.parent, error.strerror) from None
    try:
        # Not for ever: who holds it may hang on a network file system.
        deadline = time.monotonic() + BUILD_SECONDS + 30
        while not _take(descriptor, path):
            if time.monotonic() > deadline:
                message = f"another process has been building it for {BUILD_SECONDS} s"
                raise CaptureError(message)
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> bool:
    try:
        # Of this process alone: a child that is forked meanwhile does not hold it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        message = f"{str(path)!r} cannot be locked ({error.strerror}): set {CACHE_VARIABLE}"
        raise CaptureError(message) from None
    return True


def _build(plan: Plan, load: Callable[[Path], Any]) -> Any:
    """Build the library and return it, loaded; a failure is remembered."""
    show(f"building {plan.what}")
    for left in plan.library.parent.glob(f"{plan.library.stem}.*.part"):  # by one who was killed
        left.unlink(missing_ok=True)
    part = plan.library.with_suffix(f".{os.getpid()}.part")
    try:
        problem = _compile(plan, part)
        if not problem:
            part.chmod(0o700)
            _seal(part)
            part.replace(plan.library)
            plan.failed.unlink(missing_ok=True)
            return load(plan.library)
    except (OSError, AttributeError) as error:
        problem = f"{plan.compiler[0]} made what cannot be loaded ({error})"
        plan.library.unlink(missing_ok=True)
    finally:
        part.unlink(missing_ok=True)
    part.write_text(problem + "\n", encoding="utf-8")
    part.replace(plan.failed)
    raise _not_built(problem)


def _compile(plan: Plan, into: Path) -> str:
    """Return what went wrong, in one line, or nothing."""
    command = [*plan.compiler, *plan.arguments(), "-o", str(into)]
    try:
        status, said = _run(command)
    except subprocess.TimeoutExpired:
        return f"{plan.compiler[0]} was at it for more than {BUILD_SECONDS} s"
    except OSError as error:
        return f"{plan.compiler[0]} cannot be run ({error.strerror})"
    if status == 0 and into.exists():
        return ""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line]
    return (errors or lines[-1:] or [f"{plan.compiler[0]} failed and did not say why"])[0][:400]


def _run(command: list[str]) -> tuple[int, str]:
    """Run a compiler and return its status and what it said.

    The status is 0 also where it cannot be had: in a program that ignores SIGCHLD, or waits for
    all of its children.
    """
    ours = {name for name in os.environ if name.startswith("STROBE_")}  # it is not to be profiled
    environment = {name: text for name, text in os.environ.items() if name not in ours}
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,
        ) as compiler,
        contextlib.ExitStack() as undo,
    ):
        undo.callback(_kill_all_of, compiler.pid)
        said = compiler.communicate(timeout=BUILD_SECONDS)[1]
        undo.pop_all()
    return compiler.returncode, said.decode("utf-8", errors="replace")


def _kill_all_of(group: int) -> None:
    """End a process and what it has started, which would go on without it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _seal(library: Path) -> None:
    """Put a checksum at its end, which no loader looks at."""
    content = library.read_bytes()
    library.write_bytes(content + hashlib.sha256(content).digest())


def _is_whole(library: Path) -> bool:
    """Say whether it is as it was built: to load half of one would end this process."""
    content = library.read_bytes()
    return hashlib.sha256(content[:-_SEAL_BYTES]).digest() == content[-_SEAL_BYTES:]
