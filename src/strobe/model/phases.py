# SPDX-License-Identifier: Apache-2.0
"""Numbers for the phases of a training step, and span names that imply a phase."""

from __future__ import annotations

from strobe.model.tables import PHASES

LOADING, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, OTHER = range(len(PHASES))
NONE = -1
UNKNOWN = -2
"""The source says that the phase is unknown: one compiled program may span several."""

LOADER_PREFIX = "enumerate(Data"
"""What the names of a loader's waits begin with: DataLoader, and DataPipe in older versions."""
OPTIMIZER_PREFIX = "Optimizer.step#"
ZERO_GRAD_PREFIX = "Optimizer.zero_grad#"
