# SPDX-License-Identifier: Apache-2.0
"""A flame graph as a page that needs nothing else, as collapsed stacks, or for speedscope."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from strobe._version import __version__
from strobe.model.interning import Interner
from strobe.reports.numbers import format_ns

if TYPE_CHECKING:
    from strobe.analysis.flame import Flame

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_SOURCES = {
    "calls": "every call of Python, and the spans in between",
    "samples": "samples of the stacks, each for the time since the one before",
    "spans": "spans; Python's calls were not recorded (with_stack)",
}


def collapsed(flame: Flame, title: str) -> str:  # noqa: ARG001
    """Return one line per stack: its frames from the thread on, by `;`, and nanoseconds."""
    lines = []
    texts: list[str] = []
    for row in flame.nodes.iter_rows(named=True):
        label = _label(row).replace(";", ":").replace("\n", " ")
        texts.append(label if row["parent"] is None else f"{texts[row['parent']]};{label}")
        if row["self_ns"]:
            lines.append(f"{texts[-1]} {row['self_ns']}\n")
    return "".join(lines)


def speedscope(flame: Flame, title: str) -> str:
    """Return a file of speedscope: a profile per thread, whose weights are nanoseconds."""
    frames = Interner[tuple[str, str | None]]()
    profiles: dict[int, dict[str, Any]] = {}
    stacks: list[list[int]] = []
    threads: list[int] = []
    for number, row in enumerate(flame.nodes.iter_rows(named=True)):
        if row["parent"] is None:
            threads.append(number)
            stacks.append([])
            profiles[number] = _profile(row)
            # What only the thread itself took has no frame.
            continue
        key = (row["name"], row["where"])
        frame = frames[key]
        threads.append(threads[row["parent"]])
        stacks.append([*stacks[row["parent"]], frame])
        if row["self_ns"]:
            profile = profiles[threads[-1]]
            profile["samples"].append(stacks[-1])
            profile["weights"].append(row["self_ns"])
    content = {
        "$schema": _SCHEMA,
        "name": title,
        "exporter": f"strobe {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(name, where) for name, where in frames]},
        "profiles": list(profiles.values()),
    }
    return json.dumps(content, separators=(",", ":"))


def page(flame: Flame, title: str) -> str:
    """Return an HTML page that holds the graph and all that draws it."""
    columns = flame.nodes.select("parent", "name", "where", "kind", "self_ns", "calls")
    texts = Interner[str | None]()
    content = {
        "title": title,
        "source": _SOURCES[flame.source],
        "unit": "samples" if flame.source == "samples" else "calls",
        "total": format_ns(flame.total_ns),
        "parent": [-1 if row is None else row for row in columns["parent"]],
        **{name: [texts[text] for text in columns[name]] for name in ("name", "where", "kind")},
        "self_ns": columns["self_ns"].to_list(),
        "calls": columns["calls"].to_list(),
    }
    content["texts"] = list(texts)
    template = files("strobe.reports").joinpath("flame.html").read_text(encoding="utf-8")
    # "<" would end the script; in JSON it may be written so.
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return template.replace("__DATA__", data)


FORMATS: Mapping[str, tuple[str, Callable[[Flame, str], str]]] = {
    "html": (".html", page),
    "collapsed": (".collapsed.txt", collapsed),
    "speedscope": (".speedscope.json", speedscope),
}
"""Format to the ending of a file's name, and what makes its text."""


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['name']} ({row['where']})" if row["where"] else str(row["name"])


def _profile(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "sampled",
        "name": row["name"],
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": row["total_ns"],
        "samples": [],
        "weights": [],
    }


def _frame(name: str, where: str | None) -> dict[str, Any]:
    file, colon, line = (where or "").rpartition(":")
    if not colon or not line.isdecimal():
        return {"name": name} if where is None else {"name": name, "file": where}
    return {"name": name, "file": file, "line": int(line)}
