# SPDX-License-Identifier: Apache-2.0
"""The machine and the process, whatever runs in it: no framework is needed, nor imported."""
