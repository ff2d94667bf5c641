# SPDX-License-Identifier: Apache-2.0
"""Dependencies between the rooms of strobe point down only. Reads the sources, imports nothing."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "strobe"
MODULES = sorted(PACKAGE.rglob("*.py"))

# room -> the rooms it may import, besides itself and _version
LAYERS: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "model": {"errors"},
    "store": {"errors", "model"},
    "record": {"errors", "model", "store"},
    "sources": {"errors", "model", "record"},
    "importers": {"errors", "model", "store"},
    "analysis": {"errors", "model"},
    "exporters": {"errors", "model", "store", "analysis"},
    "finalize": {"errors", "model", "store", "importers", "exporters", "analysis"},
    "cluster": {"errors", "model", "store", "analysis"},
    "reports": {"errors", "model", "analysis", "exporters", "cluster"},
}
LAYERS["session"] = set(LAYERS)
LAYERS["mindspore"] = LAYERS["paddle"] = {"errors", "model", "importers", "reports", "session"}
LAYERS["mindspore"] = LAYERS["mindspore"] | {"record"}  # spans, states and messages
BELOW_THE_TOP = set(LAYERS)
LAYERS["cli"] = LAYERS["web"] = LAYERS["integrations"] = BELOW_THE_TOP
LAYERS["__main__"] = {"cli"}
LAYERS["__init__"] = set(LAYERS) - {"__main__"}

FRAMEWORKS = {
    *("jax", "jaxlib", "lightning", "mindspore", "paddle", "pytorch_lightning"),
    *("tensorflow", "torch", "transformers"),
}


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST, package: list[str]) -> Iterator[list[str]]:
    """Dotted names, as lists; those of `from` imports with the imported name at the end."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            stem = start + (node.module.split(".") if node.module else [])
            yield from ([*stem, alias.name] for alias in node.names)


def rooms_imported(source: str, package: list[str]) -> set[str]:
    ours = [name for name in imported(ast.parse(source), package) if name[0] == "strobe"]
    return {name[1] if len(name) > 1 and name[1] in LAYERS else "__init__" for name in ours}


def at_module_level(tree: ast.Module) -> ast.Module:
    """The tree without the bodies of functions, which run later or never."""

    class Cut(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    return Cut().visit(tree)


def frameworks_imported(source: str) -> set[str]:
    tree = at_module_level(ast.parse(source))
    return {name[0] for name in imported(tree, ["strobe"])} & FRAMEWORKS


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_only_rooms_below_them(module: Path) -> None:
    room = room_of(module)
    package = ["strobe", *module.relative_to(PACKAGE).parent.parts]
    assert room in LAYERS, f"{room} is a new room: say in LAYERS what it may import"

    for target in rooms_imported(module.read_text(), package) - {room, "_version"}:
        assert target in LAYERS[room], f"{room} must not import {target}"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_frameworks_are_imported_lazily(module: Path) -> None:
    if room_of(module) == "sources":
        return

    found = frameworks_imported(module.read_text())

    assert not found, f"{found} at module level; import it in a function, in sources/"


def test_every_form_of_import_is_seen() -> None:
    source = """
import strobe.store.log
from strobe import model, span
from . import parquet
from ..errors import FormatError
def later():
    from strobe.cli import app
"""
    found = rooms_imported(source, ["strobe", "store"])

    assert found == {"store", "model", "__init__", "errors", "cli"}


def test_a_framework_is_seen_only_where_it_is_imported_at_once() -> None:
    source = """
try:
    import torch.profiler
except ImportError:
    pass
class Tracer:
    from jax import profiler
def later():
    import paddle
"""
    assert frameworks_imported(source) == {"torch", "jax"}
