# SPDX-License-Identifier: Apache-2.0
"""MindSpore: operators by its own profiler, driven below mindspore.profiler; steps by hooks."""
