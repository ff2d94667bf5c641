# SPDX-License-Identifier: Apache-2.0
"""When something is recorded: the recorder, its control page, windows. Knows no framework."""
