# SPDX-License-Identifier: Apache-2.0
"""Pure functions, tables in and tables out: what a recording means.

Nothing here records, reads files, formats numbers or prints.
"""
