# SPDX-License-Identifier: Apache-2.0
"""The installed package is what its build was asked for: with C extensions, or wholly without."""

import os
import sys
import sysconfig
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

import strobe
from strobe._version import __version__

EXTENSIONS = [
    "strobe.record._core",
    "strobe.model._kernels",
    "strobe.exporters._writers",
    "strobe.importers._json",
    "strobe.importers._wire",
    "strobe.store._arrays",
]
BUILD = os.environ.get("STROBE_BUILD", "auto")


def wheel_tag() -> str:
    lines = (distribution("strobe").read_text("WHEEL") or "").splitlines()
    return next(line.removeprefix("Tag: ") for line in lines if line.startswith("Tag: "))


def test_the_installed_version_is_the_one_the_package_states() -> None:
    assert distribution("strobe").version == __version__ == strobe.__version__


def test_extensions_are_there_exactly_when_the_tag_says_so() -> None:
    found = [name for name in EXTENSIONS if find_spec(name) is not None]

    assert found == ([] if wheel_tag() == "py3-none-any" else EXTENSIONS)


def test_the_hook_is_installed_and_will_be_uninstalled() -> None:
    files = [str(file) for file in distribution("strobe").files or []]

    assert "strobe.pth" in files
    assert getattr(sys, "_strobe_hook", False), "strobe.pth was not read when this Python started"


@pytest.mark.parametrize("source", ["record/source.h", "sources/torch/callback.cpp"])
def test_what_is_compiled_on_the_users_machine_is_installed(source: str) -> None:
    assert (Path(strobe.__file__).parent / source).is_file()


@pytest.mark.skipif(BUILD != "pure", reason="STROBE_BUILD is not pure")
def test_a_pure_wheel_is_for_every_python_and_has_no_extension() -> None:
    files = [str(file) for file in distribution("strobe").files or []]

    assert wheel_tag() == "py3-none-any"
    assert "strobe/__init__.py" in files
    assert not [file for file in files if file.endswith((".so", ".c"))]


@pytest.mark.skipif(BUILD != "native", reason="STROBE_BUILD is not native")
def test_a_native_wheel_is_for_this_python() -> None:
    version = sysconfig.get_config_var("py_version_nodot")

    assert wheel_tag().startswith(f"cp{version}-cp{version}-linux_")
