# SPDX-License-Identifier: Apache-2.0
"""Names of instants that are no user's: what sources tell the finalizer.

Their attribute `since_ns` is a time of the recorder's clock, from which they last to their own, or
to `until_ns` if they have it.
"""

from __future__ import annotations

BATCH = "\x00strobe batch"
"""A loader has handed out a batch."""
FETCH = "\x00strobe fetch"
"""A loader has fetched one, in whichever process."""

OUT_OF_MEMORY = "out of memory"
"""An error told so; this one is an instant like the user's."""

MARKS = (BATCH, FETCH)
