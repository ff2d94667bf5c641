# SPDX-License-Identifier: Apache-2.0
"""The Tables of many ranks as one job. Knows no session, so it works with Tables of any kind."""
