# SPDX-License-Identifier: Apache-2.0
"""What lies on disk: the chunk log, its recovery, Parquet tables, the manifest, versions.

Nothing here decides when to record or what a figure means.
"""
