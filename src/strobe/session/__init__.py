# SPDX-License-Identifier: Apache-2.0
"""What a user holds: Profiler, Recording and open(). Composition of the rooms below, no logic."""
