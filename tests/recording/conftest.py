# SPDX-License-Identifier: Apache-2.0
"""Every test that records does so once with each recorder.

That in Python is the same on every Python: beyond `make test`, tests/unit/record/test_twins.py
holds it to the C recorder, and test-pure runs it without one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import Program

MODULES = {"c": "strobe.record._core", "python": "strobe.record._python"}


@pytest.fixture(scope="session", params=["c", pytest.param("python", marks=pytest.mark.again)])
def recorder(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        importlib.import_module(MODULES[name])
    except ImportError as error:
        pytest.skip(f"no {name} recorder in this installation ({error})")
    return name


@pytest.fixture
def program(recorder: str, tmp_path: Path) -> Iterator[Program]:
    program = Program(recorder, tmp_path)
    yield program
    program.end()
