# SPDX-License-Identifier: Apache-2.0
"""The graphs that MindSpore has compiled, as it runs them: types, groups and strategies are there.

They are saved as MindSpore writes them, one file for each, and read by strobe.importers.anf.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.sources.mindspore.session import compiler


class Graphs:
    """What has been had of each graph: it does not change once it is compiled.

    To have one takes a hundredth of the time that it took to compile it: so it is had then, and not
    when recording stops. What goes wrong is told by save().
    """

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._problems: list[str] = []

    def look(self) -> None:
        """Have all that there are now."""
        self._have(_compiled)

    def compiled(self, phase: str) -> None:
        """A graph is to run, of this name, which may be new."""
        if phase not in self._known:
            self._have(lambda: {phase})

    def save(self, folder: Path) -> list[str]:
        """Write all that there were, keep those that there still are, return what is wrong."""
        self._problems.clear()
        self.look()
        for number, content in enumerate(filter(None, self._known.values())):
            (folder / f"graph_{number}.pb").write_bytes(content)
        if not self._problems:
            now = _compiled()
            self._known = {phase: each for phase, each in self._known.items() if phase in now}
        return [*self._problems]

    def _have(self, phases: Callable[[], set[str]]) -> None:
        try:
            self._known |= {each: _content(each) for each in sorted(phases() - set(self._known))}
        except Exception as error:  # the program's graph has to run
            problem = (
                f"MindSpore's graphs cannot be had, so types of operators are unknown: {error}"
            )
            self._problems = [problem]


def _compiled() -> set[str]:
    module = compiler()
    of_cells = getattr(module, "cells_compile_cache", {}).values()
    return {*module.ms_compile_cache, *(each for one in of_cells for each in one)}


def _content(phase: str) -> bytes:
    """Return a graph of a cell as it was optimized, one of a function as it is; b"" for neither."""
    native = import_module("mindspore._c_expression")
    whole, part = native.GraphExecutor_.get_instance(), native.JitExecutor_.get_instance()
    content: Any = b""
    if whole.has_compiled(phase):
        content = whole.get_optimize_graph_proto(phase)
    elif part.has_compiled(phase):
        content = part.get_func_graph_proto(phase, "anf_ir", False)
    return content if isinstance(content, bytes) else b""


def parallel_facts() -> dict[str, Any]:
    """Return how the program has its work shared out, {} where it does not."""
    settings = import_module("mindspore").get_auto_parallel_context
    mode = settings("parallel_mode")
    if mode == "stand_alone":
        return {}
    facts = {"parallel_mode": mode}
    for name in ("device_num", "pipeline_stages", "gradients_mean", "full_batch"):
        facts[f"parallel_{name}"] = settings(name)
    return facts
