# SPDX-License-Identifier: Apache-2.0
"""What records JAX: XLA's own profiler, driven below jax.profiler."""
