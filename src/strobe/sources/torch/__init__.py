# SPDX-License-Identifier: Apache-2.0
"""PyTorch: operators by a callback built for the installed version, or by Kineto."""
