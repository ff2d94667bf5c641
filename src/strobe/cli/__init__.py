# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per verb. It prints; the rooms below compute.

Exit codes: 0 done, 1 it could not be done (one line on standard error says why), 2 wrong usage,
130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from strobe._version import __version__
from strobe.cli import analyse, clean, doctor, export, flame, info, memory, run, summary
from strobe.errors import CommandError, StrobeError, UsageError

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


def main() -> None:
    """Run the command line; an error of ours becomes one line and an exit code."""
    try:
        app()
    except StrobeError as error:
        typer.echo(f"strobe: {error}", err=True)
        sys.exit(_exit_code(error))


def _exit_code(error: StrobeError) -> int:
    if isinstance(error, CommandError):
        return error.exit_code
    return 2 if isinstance(error, UsageError) else 1
