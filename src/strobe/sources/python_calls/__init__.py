# SPDX-License-Identifier: Apache-2.0
"""What records Python itself: every call, or samples of the stacks. The work is done in C."""
