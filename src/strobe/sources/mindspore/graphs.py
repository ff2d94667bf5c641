# SPDX-License-Identifier: Apache-2.0
"""The graphs that MindSpore has compiled, as it runs them: types, groups and strategies are there.

They are saved as MindSpore writes them, one file for each, and read by strobe.importers.anf.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.sources.mindspore.session import compiler


class Graphs:
    """What has been had of each graph: it does not change once it is compiled."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def save(self, folder: Path) -> list[str]:
        """Write all that there are now, and return what is wrong with it."""
        try:
            self._known = dict(self._have())
        except (AttributeError, TypeError, ImportError, RuntimeError) as error:
            return [f"MindSpore's graphs cannot be had, so types of operators are unknown: {error}"]
        for number, content in enumerate(filter(None, self._known.values())):
            (folder / f"graph_{number}.pb").write_bytes(content)
        return []

    def _have(self) -> Iterator[tuple[str, bytes]]:
        """Yield the graphs of cells as they were optimized, and those of functions as they are."""
        module, native = compiler(), import_module("mindspore._c_expression")
        whole = native.GraphExecutor_.get_instance()
        part = native.JitExecutor_.get_instance()
        of_cells = getattr(module, "cells_compile_cache", {}).values()
        for phase in sorted(
            {*module.ms_compile_cache, *(each for one in of_cells for each in one)}
        ):
            content: Any = self._known.get(phase)
            if content is None and whole.has_compiled(phase):
                content = whole.get_optimize_graph_proto(phase)
            elif content is None and part.has_compiled(phase):
                content = part.get_func_graph_proto(phase, "anf_ir", False)
            yield phase, content if isinstance(content, bytes) else b""


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
