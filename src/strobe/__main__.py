# SPDX-License-Identifier: Apache-2.0
"""python -m strobe: the command line. Processes of ours start it as `python <this folder>`."""

import os
import sys

if sys.argv[1:2] == ["_finalize"] and hasattr(os, "nice"):
    # Before anything of ours is imported, but not earlier: who starts it waits until it runs.
    os.nice(10)
if not __package__:
    # Started by its path, Python has put this folder on sys.path, where its parent should be.
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120

from strobe.cli import main

main()
