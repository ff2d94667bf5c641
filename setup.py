# SPDX-License-Identifier: Apache-2.0
"""The part of the build that pyproject.toml cannot say: C extensions and a scratch directory."""

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup


def sources(directory: str, name: str = "") -> list[str]:
    """Return the C files of a directory whose names begin so; SystemExit if it has none."""
    found = sorted(str(path) for path in Path(directory).glob(f"{name}*.c"))
    if not found:
        raise SystemExit(f"{directory}: no C sources found; build from a full copy of the project")
    return found


def extensions() -> list[Extension]:
    """Return the C extensions; build_backend/strobe_build.py decides whether they are built."""
    core = sources("native/core")
    writers = sources("native/exporters")
    headers = sorted(str(path) for path in Path("native").rglob("*.h"))
    flags = ["-std=c11", "-O2", "-fvisibility=hidden", "-pthread"]
    return [
        Extension(
            "strobe.record._core",
            core,
            include_dirs=["native/core", "src/strobe/record"],
            depends=headers,
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
        ),
        Extension(
            "strobe.model._kernels",
            ["native/kernels.c"],
            include_dirs=["native", "native/core"],
            depends=headers,
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
        ),
        Extension(
            "strobe.store._arrays",
            sources("native/store"),
            extra_compile_args=flags,
            extra_link_args=["-pthread"],
        ),
        Extension(
            "strobe.exporters._writers",
            writers,
            include_dirs=["native/exporters"],
            depends=headers,
            extra_compile_args=flags,
        ),
        Extension(
            "strobe.importers._wire",
            sources("native/importers", "wire"),
            include_dirs=["native", "native/importers"],
            depends=headers,
            extra_compile_args=flags,
        ),
        Extension(
            "strobe.importers._json",
            sources("native/importers", "json"),
            include_dirs=["native", "native/importers"],
            depends=headers,
            extra_compile_args=flags,
        ),
    ]


# Everything is built in a fresh directory: setuptools packs whatever an old build/ holds, be it a
# module deleted since or an extension that a pure wheel must not contain. An sdist takes its file
# list from the egg-info directory, which must then lie inside the project.
with tempfile.TemporaryDirectory(prefix="strobe-build-") as scratch:
    options = {"build": {"build_base": scratch}}
    if "sdist" not in sys.argv:
        options["egg_info"] = {"egg_base": scratch}
    setup(
        ext_modules=extensions() if os.environ.get("STROBE_BUILD") == "native" else [],
        options=options,
    )
