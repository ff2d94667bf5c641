# SPDX-License-Identifier: Apache-2.0
"""Many ranks as one: the Tables of a run. Knows no session: Tables of any kind will do."""
