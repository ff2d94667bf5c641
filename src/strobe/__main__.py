# SPDX-License-Identifier: Apache-2.0
"""python -m strobe: the command line."""

from strobe.cli import main

main()
