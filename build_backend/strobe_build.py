# SPDX-License-Identifier: Apache-2.0
"""Build backend: setuptools, with the C extensions where they compile and without them elsewhere.

STROBE_BUILD=native turns a failed compilation into an error; STROBE_BUILD=pure does not try.
setup.py is told the outcome through the same variable, which is then never "auto".

Every wheel, an editable one too, gets strobe.pth at its root, which Python reads at each start: the
hook behind STROBE_OPTIONS. setuptools has no place for such a file.
"""

import base64
import csv
import hashlib
import io
import os
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any] | None

HOOK = Path(__file__).with_name("strobe.pth")


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel for this interpreter, or a py3-none-any one; return its file name."""

    def build() -> str:
        return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)

    return _add_hook(wheel_directory, _build(build))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the extensions into src/, or remove old ones from there; return the wheel's name."""

    def build() -> str:
        _remove_built_in_place()
        return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)

    return _add_hook(wheel_directory, _build(build))


def _build(build: Callable[[], str]) -> str:
    wish = os.environ.get("STROBE_BUILD", "auto")
    if wish not in ("auto", "native", "pure"):
        raise SystemExit(f"STROBE_BUILD={wish!r}: must be auto, native or pure")
    obstacle = "STROBE_BUILD=pure was asked for" if wish == "pure" else _obstacle()
    if wish == "native" and obstacle:
        raise SystemExit(f"STROBE_BUILD=native: {obstacle}; unset it to build without C extensions")

    if obstacle is None:
        try:
            with _told("native"):
                return build()
        except SystemExit as error:
            # setuptools ends every failed command this way, Ctrl-C included.
            if wish == "native" or str(error) == "interrupted":
                raise
            print(error, file=sys.stderr)
            obstacle = "the C extensions did not compile, for the reason above"

    print(f"strobe: {obstacle}; the Python recorder will be used", file=sys.stderr, flush=True)
    with _told("pure"):
        return build()


def _add_hook(wheel_directory: str, name: str) -> str:
    """Put strobe.pth into the wheel and into its RECORD, so that uninstalling removes it."""
    wheel = Path(wheel_directory, name)
    part = wheel.with_suffix(".part")
    content = HOOK.read_bytes()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            data = old.read(member)
            if member.filename.endswith(".dist-info/RECORD"):
                hook = zipfile.ZipInfo(HOOK.name, member.date_time)
                hook.external_attr = member.external_attr
                new.writestr(hook, content, zipfile.ZIP_DEFLATED)
                data += _record_line(HOOK.name, content)
            new.writestr(member, data)
    part.replace(wheel)
    return name


def _record_line(name: str, content: bytes) -> bytes:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([name, f"sha256={digest}", len(content)])
    return line.getvalue().encode()


def _obstacle() -> str | None:
    """Why the extensions cannot work here, or None."""
    if sys.implementation.name != "cpython":
        return f"the C extensions need CPython, this is {sys.implementation.name}"
    if not sys.platform.startswith("linux"):
        return f"the C extensions need Linux, this is {sys.platform}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the C extensions need the GIL, this is a free-threaded build"
    return None


@contextmanager
def _told(decision: str) -> Iterator[None]:
    before = os.environ.get("STROBE_BUILD")
    os.environ["STROBE_BUILD"] = decision
    try:
        yield
    finally:
        if before is None:
            del os.environ["STROBE_BUILD"]
        else:
            os.environ["STROBE_BUILD"] = before


def _remove_built_in_place() -> None:
    # An editable install puts extensions into src/. One from an earlier build would be imported
    # by a build that has none, so this interpreter's go first; other interpreters keep theirs.
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for built in Path("src").rglob(f"*{suffix}"):
        built.unlink()
