# SPDX-License-Identifier: Apache-2.0
"""The arguments of summary(), checked, and what they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strobe.errors import UsageError
from strobe.model.paddle import SortedKeys, SummaryView
from strobe.session.paddle import paddle_tables

if TYPE_CHECKING:
    from strobe.session.paddle import PaddleTables
    from strobe.session.recording import Recording

_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How the tables are to be shown."""

    sorted_by: SortedKeys
    op_detail: bool
    thread_sep: bool
    time_unit: str
    views: list[SummaryView] | None
    row_limit: int

    @classmethod
    def of(
        cls,
        sorted_by: Any,
        op_detail: Any,
        thread_sep: Any,
        time_unit: Any,
        views: Any,
        row_limit: Any,
    ) -> Shown:
        """Return what the arguments mean; raises UsageError for one that cannot be right."""
        if time_unit not in _UNITS:
            message = f"summary(time_unit={time_unit!r}): must be one of {', '.join(_UNITS)}"
            raise UsageError(message)
        if type(row_limit) is not int or row_limit < 1:
            message = f"summary(row_limit={row_limit!r}): must be an int of 1 or more"
            raise UsageError(message)
        return cls(
            sorted_by=_sorted_by(sorted_by),
            op_detail=bool(op_detail),
            thread_sep=bool(thread_sep),
            time_unit=time_unit,
            views=_views(views),
            row_limit=row_limit,
        )

    def show(self, recording: Recording, *, flops: bool = False) -> PaddleTables:
        """Print the tables, and return all of them."""
        from strobe.reports.paddle import flops_text, summary_text

        tables = paddle_tables(recording, sorted_by=self.sorted_by, thread_sep=self.thread_sep)
        text = summary_text(
            tables,
            op_detail=self.op_detail,
            time_unit=self.time_unit,
            views=self.views,
            row_limit=self.row_limit,
        )
        print(text)
        if flops:
            print(flops_text(tables))
        return tables


def _sorted_by(value: object) -> SortedKeys:
    key = SortedKeys.__members__.get(getattr(value, "name", ""))
    if key is None:
        names = ", ".join(f"SortedKeys.{name}" for name in SortedKeys.__members__)
        message = f"summary(sorted_by={value!r}): must be one of {names}"
        raise UsageError(message)
    return key


def _views(value: object) -> list[SummaryView] | None:
    if value is None:
        return None
    given = list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]
    found = [SummaryView.__members__.get(getattr(each, "name", "")) for each in given]
    if None in found or not found:
        names = ", ".join(f"SummaryView.{name}" for name in SummaryView.__members__)
        message = f"summary(views={value!r}): must be one or more of {names}, or None"
        raise UsageError(message)
    return [view for view in found if view is not None]
