# SPDX-License-Identifier: Apache-2.0
"""RecordEvent: a span by Paddle's name."""

from __future__ import annotations

from typing import Any

from strobe.errors import UsageError
from strobe.model.paddle import ON_DEVICE, TracerEventType
from strobe.session.paddle import event_span, span

_NOT_OF_PROGRAMS = (*ON_DEVICE, TracerEventType.CudaRuntime)


class _Spans(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, span)


class RecordEvent(metaclass=_Spans):
    """A named part of the program: `with`, a decorator, or begin() and end().

    What it returns is a strobe.span, so that it costs what one costs: next to nothing while nothing
    records. It may nest, overlap, recur, cross threads and steps, or never end.

    Raises UsageError for a name that is no str, and for a type of events of devices.
    """

    def __new__(
        cls,
        name: str,
        event_type: Any = TracerEventType.PythonUserDefined,
    ) -> Any:
        """Return a span that is recorded as an event of this type."""
        if event_type is not TracerEventType.PythonUserDefined:
            event_type = _as_type(event_type)
        if not isinstance(name, str):
            message = f"RecordEvent({name!r}): name must be a str"
            raise UsageError(message)
        return event_span(name, event_type)


def _as_type(value: object) -> TracerEventType:
    """Return the member of our enum that has this one's name, so that Paddle's will do."""
    known = TracerEventType.__members__.get(getattr(value, "name", ""))
    if known is None or known in _NOT_OF_PROGRAMS:
        names = ", ".join(each.name for each in TracerEventType if each not in _NOT_OF_PROGRAMS)
        message = f"RecordEvent(event_type={value!r}): must be a TracerEventType of {names}"
        raise UsageError(message)
    return known
