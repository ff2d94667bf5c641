# SPDX-License-Identifier: Apache-2.0
"""Files that other profilers wrote, read into columns: one module per format."""
