# SPDX-License-Identifier: Apache-2.0
"""All verbs for people, as Typer shows them."""

from __future__ import annotations

import typer

from strobe._version import __version__
from strobe.cli import analyse, clean, doctor, export, flame, info, memory, run, summary

app = typer.Typer(
    name="strobe",
    help="""A profiler for neural-network training and inference that loses nothing.

    Example: strobe run train.py, then strobe summary strobe_data
    """,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run", cls=run.RunCommand)(run.run)
app.command("summary")(summary.summary)
app.command("memory")(memory.memory)
app.command("flame")(flame.flame)
app.command("info")(info.info)
app.command("export")(export.export)
app.command("analyse")(analyse.analyse)
app.command("doctor")(doctor.doctor)
app.command("clean")(clean.clean)


@app.callback(invoke_without_command=True)
def _strobe(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
