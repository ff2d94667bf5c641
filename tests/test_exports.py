# SPDX-License-Identifier: Apache-2.0
"""What `import strobe` promises: a complete list of documented names, and little work."""

import inspect
import subprocess
import sys
import types

import pytest

import strobe


def test_all_is_sorted() -> None:
    assert list(strobe.__all__) == sorted(strobe.__all__)


def test_all_is_complete() -> None:
    public = {
        name
        for name, value in vars(strobe).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    public.discard("annotations")  # from __future__ import annotations

    assert public <= set(strobe.__all__)


@pytest.mark.parametrize("name", strobe.__all__)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    value = getattr(strobe, name)

    assert inspect.getdoc(value), f"strobe.{name} has no docstring"


def test_dir_shows_every_public_name() -> None:
    assert set(strobe.__all__) <= set(dir(strobe))


def test_importing_strobe_imports_nothing_heavy() -> None:
    heavy = ["numpy", "polars", "rich", "typer", "torch", "jax", "paddle", "mindspore"]
    heavy += ["lightning", "pytorch_lightning", "transformers"]
    script = f"import sys, strobe; print([name for name in {heavy} if name in sys.modules])"

    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert shown.strip() == "[]"
