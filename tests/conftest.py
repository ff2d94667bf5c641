# SPDX-License-Identifier: Apache-2.0
"""How many examples hypothesis tries; --hypothesis-profile=brief for a tenth of them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A busy machine may take any time for an example; pytest's own time limit is for what hangs.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("strobe", PATIENT)
settings.register_profile("brief", PATIENT, max_examples=10)
settings.load_profile("strobe")

# What a program of a test does in a second may take minutes there, and is to be recorded whole.
for framework in ("JAX", "MINDSPORE", "PADDLE"):
    os.environ.setdefault(f"STROBE_{framework}_SECONDS", "3600")
