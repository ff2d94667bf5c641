# SPDX-License-Identifier: Apache-2.0
"""Names of records that are no user's: what sources tell the finalizer."""

from __future__ import annotations

BATCH = "\x00strobe batch"
"""A framework's loader has handed out a batch: an instant with an attribute `since_ns`, a time of
the recorder's clock. Of strobe.watch: a counter, whose value is the batch's number and whose name
ends with JSON: `loader`, `wait` (the name of the span right before it) and maybe `samples`."""
FETCH = "\x00strobe fetch"
"""A framework's loader has fetched one, in whichever process: an instant with `since_ns`."""

OUT_OF_MEMORY = "out of memory"
"""An error told so; this one is an instant like the user's."""

STEP = "step"
"""A program that marks no steps has those of its spans with this name, which are the user's too."""
