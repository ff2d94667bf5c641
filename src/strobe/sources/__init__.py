# SPDX-License-Identifier: Apache-2.0
"""Sources: what records besides strobe.span. The only room that imports a framework, and only one
that the program has imported itself.
"""
