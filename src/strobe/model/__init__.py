# SPDX-License-Identifier: Apache-2.0
"""What a recording holds: tables, columns, units, and the laws that they obey. No I/O."""

from strobe.model.laws import check
from strobe.model.tables import TABLES, Column, Table

__all__ = ["TABLES", "Column", "Table", "check"]
