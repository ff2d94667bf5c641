# SPDX-License-Identifier: Apache-2.0
"""The C tests of this folder, compiled without Python; `make stress` runs them in other ways."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMPILER = os.environ.get("CC", "gcc")


@pytest.mark.again
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"no C compiler ({COMPILER})")
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_c_core_passes_its_own_tests() -> None:
    run = subprocess.run(
        ["bash", "tools/native_tests.sh", "plain"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed, 0 failed" in run.stdout
