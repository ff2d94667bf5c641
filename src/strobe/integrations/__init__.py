# SPDX-License-Identifier: Apache-2.0
"""strobe inside other people's trainers: one module per trainer, imported by its users alone."""
