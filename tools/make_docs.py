# SPDX-License-Identifier: Apache-2.0
"""Write docs/cli.md from the commands and docs/tables.md from the model, so that both are true."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from strobe.cli._app import app
from strobe.model.tables import TABLES

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by `make docs`; edit the source, not this page. -->"
# Every command has these; naming them once is enough.
COMMON = {"--help", "--install-completion", "--show-completion"}


def main() -> None:
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")


def cli_page() -> str:
    lines = [
        "# Commands",
        "",
        NOTE,
        "",
        "Every command prints what it takes with `--help`. What takes longer than a second shows",
        "how far it is, at a terminal. `strobe --install-completion` makes the shell complete",
        "commands, options and values (bash, zsh, fish, PowerShell); `strobe --show-completion`",
        "prints what it would add.",
        "",
        "| exit code | |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | it could not be done; one line on standard error says why |",
        "| 2 | wrong usage: an option, a value or a path that cannot be meant |",
        "| 130 | interrupted with Ctrl-C |",
        "| another | of `strobe run`: it ends as its program does, killed by a signal included |",
        "",
    ]
    for path, command in commands():
        lines += command_section(path, command)
    return "\n".join(lines)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield (what to type, command) for every command that is not hidden, sorted."""
    yield from below("strobe", typer.main.get_command(app))


def below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    # typer carries its own copy of click in some versions, so nothing is imported from click.
    yield path, command
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if not child.hidden:
            yield from below(f"{path} {name}", child)


def parameters(command: Any) -> list[Any]:
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    return [parameter for parameter in shown if not COMMON & set(parameter.opts)]


def spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = (parameter.metavar or parameter.name).strip("[]").upper()
        return name if parameter.required else f"[{name}]"
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def command_section(path: str, command: Any) -> list[str]:
    shown = parameters(command)
    places = [spelling(each) for each in shown if each.param_type_name == "argument"]
    lines = [f"## `{' '.join([path, *places])}`", "", paragraphs(command.help), ""]
    if shown:
        lines += ["| | |", "|---|---|"]
        lines += [f"| `{spelling(each)}` | {one_line(each.help)} |" for each in shown]
        lines += [""]
    return lines


def tables_page() -> str:
    lines = [
        "# Tables",
        "",
        NOTE,
        "",
        "A recording is these tables. Times are int64 nanoseconds and sizes int64 bytes; the unit",
        "is in the column's name.",
        "",
    ]
    for name, table in TABLES.items():
        lines += [f"## `{name}`", "", paragraphs(table.doc), ""]
        lines += ["| column | type | |", "|---|---|---|"]
        lines += [f"| `{c.name}` | {c.dtype} | {one_line(c.doc)} |" for c in table.columns]
        lines += [""]
    return "\n".join(lines)


def paragraphs(text: str | None) -> str:
    parts = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


PAGES = {"cli.md": cli_page, "tables.md": tables_page}

if __name__ == "__main__":
    main()
