# SPDX-License-Identifier: Apache-2.0
"""The directories that MindSpore's profiler leaves: a small function per file, all in one list."""
