# SPDX-License-Identifier: Apache-2.0
"""Dependencies between the rooms of strobe point down only. Reads the sources, imports nothing.

A string that names a module, or is a program that imports it, is an import too.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

C_SUFFIXES = {".c", ".cpp", ".h"}
PACKAGE = Path(__file__).resolve().parent.parent / "src" / "strobe"
MODULES = sorted(PACKAGE.rglob("*.py"))
NATIVE = PACKAGE.parent.parent / "native"
C_SOURCES = sorted(
    path
    for folder in (NATIVE, PACKAGE)
    for path in folder.rglob("*.*")
    if path.suffix in C_SUFFIXES
)

# room -> the rooms it may import, besides itself and _version
LAYERS: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),
    "model": {"errors"},
    "store": {"errors", "model"},
    "record": {"errors", "model", "store"},
    "sources": {"errors", "model", "record"},
    "importers": {"errors", "model", "store"},
    "assemble": {"errors", "model", "store"},
    "analysis": {"errors", "model", "store"},
    "exporters": {"errors", "model", "store", "analysis"},
    "finalize": {"errors", "model", "store", "importers", "assemble"},
    "cluster": {"errors", "model", "store", "analysis"},
    "reports": {"errors", "model", "store", "analysis", "exporters", "cluster"},
}
LAYERS["session"] = set(LAYERS)
LAYERS["mindspore"] = LAYERS["paddle"] = {"errors", "model", "importers", "reports", "session"}
LAYERS["mindspore"] = LAYERS["mindspore"] | {"record"}  # spans, states and messages
BELOW_THE_TOP = set(LAYERS)
LAYERS["cli"] = LAYERS["web"] = LAYERS["integrations"] = BELOW_THE_TOP
LAYERS["__main__"] = {"cli"}
LAYERS["__init__"] = set(LAYERS) - {"__main__"}

# in native/ -> the room whose extension module it is
NATIVE_ROOMS = {
    "core": "record",
    "exporters": "exporters",
    "importers": "importers",
    "kernels.c": "model",
    "store": "store",
    "stateless.h": "errors",  # is in all of them
}
# Stands for what is put into a string only when the program runs: no room may import that.
UNKNOWN = "a_room_that_only_a_run_knows"
# `strobe.cli`, `strobe.cli.run`, `strobe.cli:main` and, to be continued, `strobe.` or `strobe.cli.`
MODULE_NAME = re.compile(r"strobe\.([\w.]*)(:\w+)?")
PLACEHOLDER = re.compile(r"%[rs]|\{\w*\}")
# In a command line of a shell, which is no Python.
INSIDE_A_COMMAND = re.compile(r"\bfrom\s+(strobe[\w.]*)\s+import\s+(\w+)|-m\s+(strobe\.[\w.]+)")

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


def texts(tree: ast.AST) -> Iterator[str]:
    """String constants; those that stand alone, as docstrings do, say something to people only."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        text = as_text(node)
        if text is not None:
            yield text
        # The pieces of an f-string are no strings of their own; what is put between them may be.
        cut = (ast.Constant,) if isinstance(node, ast.JoinedStr) else ()
        waiting += [part for part in ast.iter_child_nodes(node) if not isinstance(part, cut)]


def as_text(node: ast.AST) -> str | None:
    """What a string's node says, UNKNOWN for what is put into it later; None for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(as_text(part) or UNKNOWN for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
        value = node.value
        text = value if isinstance(value, str) else value.decode("latin-1")
        return PLACEHOLDER.sub(UNKNOWN, text)
    return None


def named(tree: ast.AST, package: list[str]) -> Iterator[list[str]]:
    """Dotted names that are in strings, as lists."""
    for text in texts(tree):
        if "strobe" in text:
            yield from named_by(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if function in ("import_module", "__import__"):
                yield from named_in_call(node, package)


def named_by(text: str) -> Iterator[list[str]]:
    """What a string names as a whole, or imports if it is a program."""
    found = MODULE_NAME.fullmatch(text)
    if found:
        room = found[1].split(".")[0] or UNKNOWN
        if room in LAYERS or UNKNOWN in room:  # not strobe.json, which is a file, nor strobe.span
            yield ["strobe", room]
        return
    try:
        program = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        for module, name, started in INSIDE_A_COMMAND.findall(text):
            yield [*(started or module).split("."), *([name] if name else [])]
    else:
        yield from imported(program, [])
        yield from named(program, [])


def named_in_call(call: ast.Call, package: list[str]) -> Iterator[list[str]]:
    """What import_module is given, where that is relative or the whole package."""
    name = as_text(call.args[0]) or ""
    if name == "strobe":
        yield ["strobe"]
    if not name.startswith("."):
        return
    given = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "package")]
    start = package
    if given and as_text(given[0]):
        start = str(as_text(given[0])).split(".")
    elif not given or getattr(given[0], "id", "") not in ("__package__", "__name__"):
        start = ["strobe", UNKNOWN]
    rest = name.lstrip(".")
    yield start[: len(start) - (len(name) - len(rest)) + 1] + rest.split(".")


def rooms_imported(source: str, package: list[str]) -> set[str]:
    tree = ast.parse(source)
    found = [*imported(tree, package), *named(tree, package)]
    return {room_named(name) for name in found if name[:1] == ["strobe"]}


def room_named(name: list[str]) -> str:
    if len(name) > 1 and UNKNOWN in name[1]:
        return UNKNOWN
    return name[1] if len(name) > 1 and name[1] in LAYERS else "__init__"


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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('MODULE = "strobe.cli"', "cli"),
        ('LAZY = {"open": ("strobe.session.recording", "open_recording")}', "session"),
        ('start(python, "-m", "strobe.web.server")', "web"),
        ('find_entry("strobe.cli:main")', "cli"),
        ('CAPSULE = b"strobe.record._core.source"', "record"),
        ('import_module(f"strobe.importers.{name}")', "importers"),
        ('import_module(f"strobe.{name}")', UNKNOWN),
        ('import_module("strobe." + name)', UNKNOWN),
        ('import_module("strobe.%s.run" % name)', UNKNOWN),
        ('import_module("strobe.exporters." + name)', "exporters"),
        ('import_module("strobe.exporters.{}".format(name))', "exporters"),
        ('import_module(name, "strobe.exporters")', "exporters"),
        ('__import__("strobe.cli")', "cli"),
        ('import_module("strobe")', "__init__"),
        ('import_module("..cli.run", __package__)', "cli"),
        ('import_module("..cli.run", package=__package__)', "cli"),
        ('importlib.import_module(".log", __name__)', "store"),
        ('importlib.import_module(f".{name}", __package__)', "store"),
        ('importlib.import_module(f"..{name}", __package__)', UNKNOWN),
        ('importlib.import_module(".log", somewhere)', UNKNOWN),
        ('P = "import sys; from strobe.session.finalizer import main; main()"', "session"),
        ('P = "from strobe import session"', "session"),
        ('P = f"import os; from strobe.session.{name} import main"', "session"),
        ('P = "import strobe.session.hook as hook; hook.start(%s)"', "session"),
        ("P = \"import importlib; importlib.import_module('strobe.cli')\"", "cli"),
        ('P = """\n    if True:\n        import strobe.cli\n    """', "cli"),
        ("P = 'python -c \"from strobe.cli import main; main()\"'", "cli"),
        ('P = "exec python -m strobe.web.server --port 0"', "web"),
    ],
)
def test_every_string_that_names_a_module_is_seen(source: str, expected: str) -> None:
    found = rooms_imported(source, ["strobe", "store"])

    assert found == {expected}


@pytest.mark.parametrize(
    "source",
    [
        '"""strobe.cli prints."""\ndef f():\n    "strobe.cli"\nSIZE = 1\n"strobe.cli"',
        'FILE_NAME = "strobe.json"',
        'name = "strobe.span"',
        'app(name="strobe")',
        'message = f"not recorded by strobe.mindspore, but by {name}; see strobe.open"',
        'message = "import tensorboard_trace_handler from strobe.mindspore too"',
        'repr = f"strobe.span({name!r})"',
    ],
)
def test_a_string_for_people_is_no_import(source: str) -> None:
    assert rooms_imported(source, ["strobe", "store"]) == set()


@pytest.mark.parametrize("source", C_SOURCES, ids=lambda path: path.name)
def test_c_sources_name_only_rooms_below_them(source: Path) -> None:
    in_native = source.is_relative_to(NATIVE)
    room = NATIVE_ROOMS[source.relative_to(NATIVE).parts[0]] if in_native else room_of(source)

    named = set(re.findall(r'"strobe\.(\w+)', source.read_text())) & set(LAYERS)

    assert named <= {room, *LAYERS[room]}


def test_no_room_has_the_name_of_a_module_of_python() -> None:
    """Processes of ours start with the package's folder on sys.path: see finalize.process."""
    found = {room_of(path) for path in MODULES} & set(sys.stdlib_module_names)

    assert found <= {"__init__", "__main__"}


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
