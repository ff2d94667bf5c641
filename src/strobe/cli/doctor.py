# SPDX-License-Identifier: Apache-2.0
"""strobe doctor: what works on this machine, and why what does not, does not."""

from __future__ import annotations

import importlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import typer

from strobe._version import __version__
from strobe.errors import CaptureError, CommandError, StrobeError
from strobe.record import recorder
from strobe.reports.numbers import format_ns
from strobe.reports.waiting import waiting
from strobe.store import places
from strobe.store.layout import FORMAT_VERSION

_FRAMEWORKS = ("torch", "jax", "paddlepaddle", "mindspore")


def doctor(
    build: bool = typer.Option(
        False,
        "--build",
        help="Build what PyTorch or Paddle needs, also after a failure.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of text."),
) -> None:
    """Say which recorder runs here, prove it with a small recording, and look at the frameworks.

    PyTorch is recorded by a callback that is compiled on first use, else by Kineto.
    STROBE_TORCH=callback or =kineto chooses. What takes the shapes of operators from Paddle is
    compiled when they are first asked for. STROBE_BUILD_CALLBACK=0 forbids to compile;
    STROBE_CACHE is the folder that keeps what was compiled; CXX is the compiler.

    Example: strobe doctor --build
    """
    from strobe.model import nesting
    from strobe.sources import active

    if build:
        _build()
    facts: dict[str, Any] = {
        "strobe": __version__,
        "format": FORMAT_VERSION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{sys.platform} {platform.machine()}",
        "recorder": recorder.KIND,
        "recorder_reason": recorder.REASON,
        "kernels": nesting.KIND,
        **{name: _version(name) for name in ("polars", "numpy", *_FRAMEWORKS)},
        **_try_recording(),
        "sources": active.examine(),
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    _print(facts)


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console

    from strobe.reports.text import facts_table

    shown = {**facts, "span_cost_ns": format_ns(facts["span_cost_ns"])}
    shown["a span costs about"] = shown.pop("span_cost_ns")
    sources = shown.pop("sources")
    console = Console()
    console.print(facts_table("strobe on this machine", shown))
    for name, source in sources.items():
        console.print(facts_table(f"\n{name}", source))
    if recorder.KIND != "C":
        typer.echo("For the C recorder: install a C compiler and Python's headers, then reinstall.")


def _builders() -> dict[str, tuple[str, str, Callable[..., object]]]:
    """Return, by framework, how it is called, what is built for it, and what builds that."""
    from strobe.sources.paddle import build as paddle_build
    from strobe.sources.torch import build as torch_build

    return {
        "torch": ("PyTorch", "the callback", torch_build.load),
        "paddle": ("Paddle", "the taker of shapes", paddle_build.load),
    }


def _build() -> None:
    """Import the installed frameworks and build what they need, or raise CommandError."""
    builders = _builders()
    installed = [framework for framework in builders if find_spec(framework) is not None]
    for framework in installed or ["torch"]:
        name, what, load = builders[framework]
        try:
            with waiting("compiling"):
                importlib.import_module(framework)
                load(again=True)
        except (ImportError, OSError) as error:
            message = f"doctor --build: {name} cannot be imported ({error})"
            raise CommandError(message) from None
        except CaptureError as error:
            message = f"doctor --build: {what} for {name} cannot be used: {error}"
            raise CommandError(message) from None
        typer.echo(f"strobe: {what} for {name} is built and can be loaded", err=True)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _try_recording() -> dict[str, Any]:
    """Record one span for real and read it back."""
    from strobe.session import ending
    from strobe.session.profiler import Profiler

    ending.announce_nothing()
    with tempfile.TemporaryDirectory() as folder:
        profiler = Profiler(output=folder, name="doctor")
        try:
            with profiler, recorder.span("doctor"):
                cost_ns, _ = recorder.core.calibrate()
                in_files = recorder.core.stats()["anonymous_rings"] == 0
            found = profiler.recording.operators()["name"].to_list()
            # The finalizer may come for it while its folder is deleted.
            places.remove_recording(profiler.recording.path, wait=True)
        except (OSError, StrobeError) as error:
            return {"a recording": f"failed: {error}", "span_cost_ns": None, "kill_9_safe": False}
    return {
        "a recording": "works" if found == ["doctor"] else f"wrong: {found}",
        "span_cost_ns": cost_ns if cost_ns >= 0 else None,
        "kill_9_safe": in_files,
    }
