# SPDX-License-Identifier: Apache-2.0
"""PaddlePaddle: operators by its native profiler, the rest by hooks. Nothing here imports it."""
