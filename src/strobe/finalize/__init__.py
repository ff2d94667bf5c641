# SPDX-License-Identifier: Apache-2.0
"""From a log to tables, outside the profiled process: the finalizer, and open() on demand.

Nothing here runs in the profiled process unless the program itself asks for its tables.
"""
