# SPDX-License-Identifier: Apache-2.0
"""Spans, instants and counters, and the recorder's functions by the names of the C module."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Iterable
from time import monotonic_ns
from types import FunctionType, SimpleNamespace
from typing import Any, Final

from strobe.record import _support
from strobe.record._python.files import forget_error
from strobe.record._python.log import Log
from strobe.record._python.recorder import GENERATION, Thread, recorder, thread
from strobe.record._python.ring import HEAD, OWN_NS, RECORD, Ring, map_private
from strobe.store import layout

HAS_COUNTER = 0  # Python cannot read the processor's

clock_ns: Callable[[], int] = monotonic_ns

# An open slot's second and third word: name | attributes << 32, lane | category << 32.
_put_open = struct.Struct("<2Q").pack_into
_pack_float = struct.Struct("<d").pack
_TEXT = struct.Struct("<2Q")
_NUMBERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (layout.VALUE_INT, struct.Struct("<q").pack),
    float: (layout.VALUE_FLOAT, _pack_float),
    bool: (layout.VALUE_BOOL, struct.Struct("<Q").pack),
    type(None): (layout.VALUE_NULL, struct.Struct("<Q").pack),
}

use_control = recorder.use_control
start = recorder.start
stop = recorder.stop
stats = recorder.stats
directory = recorder.directory

# Globals of this module are found faster than another's attributes.
_put_record = RECORD.pack_into
_thread = thread
_recorder = recorder
_GENERATION: Final = GENERATION
_RECORDS: Final = layout.RECORDS_OFFSET
_MASK: Final = layout.RING_RECORDS - 1
_HEAD: Final = HEAD
_SPAN: Final = layout.KIND_SPAN << 32
_INSTANT: Final = layout.KIND_INSTANT << 32
_COUNTER: Final = layout.KIND_COUNTER << 32
_STEP: Final = layout.KIND_STEP << 32
_VALUE: Final = layout.KIND_VALUE << 32

_INT_END: Final = 1 << 63
_PLAIN = frozenset({type(None), bool, int, float, str})
_MISSING: Any = object()

# One beginning that has not ended: the ring it was begun on, its open slot, start_ns,
# name | attributes << 32, lane, and the opening of this span and lane before it.
_Opening = tuple[Ring, int, int, int, int, Any]


def _look_for_asyncio() -> Any:
    """Stand in for asyncio's function until asyncio is there, whole."""
    global _running_loop, _current_task
    try:
        current_task = sys.modules["asyncio.tasks"].current_task
        running_loop = sys.modules["asyncio.events"]._get_running_loop
    except (AttributeError, KeyError):
        return None
    _current_task = current_task
    _running_loop = running_loop
    return running_loop()


_modules = sys.modules
_running_loop: Callable[[], Any] = _look_for_asyncio
_current_task: Callable[[Any], Any]


def _lane_key() -> int:
    """0: the thread, else the running task. A freed task's id may come again: the new task cannot
    overlap the old one, so they may share a lane.
    """
    loop = _running_loop()
    task = None if loop is None else _current_task(loop)
    return 0 if task is None else id(task)


def _lane(ring: Ring) -> int:
    key = _lane_key()
    return ring.lane if key == ring.lane_key else ring.find_lane(key)


def _identify(ring: Ring, name: str, attributes: dict[str, Any] | None) -> int:
    """Return name | attributes << 32; 0 when there is no naming it."""
    encoded = 0
    try:
        if attributes is not None:
            try:
                encoded = _attributes_id(ring, attributes) << 32
            except Exception as error:
                forget_error(error)
        return encoded | ring.log.string_id(name)
    except Exception as error:
        forget_error(error)
        return 0


def _attributes_id(ring: Ring, attributes: dict[str, Any]) -> int:
    """Return the number of a set of values, written to the ring, or else of their JSON."""
    values = attributes.values()
    if len(attributes) > layout.MOST_VALUES or not _are_plain(values):
        began_ns = clock_ns()
        number = ring.log.string_id(_support.encode_attributes(attributes))
        ring.words[OWN_NS] += clock_ns() - began_ns
        return number
    records = [
        (ring.log.string_id(key), *record)
        for key, value in attributes.items()
        for record in _value_records(ring.log, value)
    ]
    with ring.log.lock:
        number = layout.VALUES_BIT | ring.log.next_values
        ring.log.next_values += 1
    for key, first, second, lane_and_kind in records:
        ring.put(first, second, key | number << 32, lane_and_kind)
    return number


def _are_plain(values: Iterable[Any]) -> bool:
    return all(
        type(value) in _PLAIN and (type(value) is not int or -_INT_END <= value < _INT_END)
        for value in values
    )


def _value_records(log: Log, value: Any) -> list[tuple[int, int, int]]:
    """Return the two words of a value and its string, kind, type and length, for each record."""
    if type(value) is not str:
        kind, pack = _NUMBERS[type(value)]
        word = 0 if value is None else int.from_bytes(pack(value), "little")
        return [(0, word, _VALUE | kind << 40)]
    try:
        text = value.encode()
    except UnicodeEncodeError:
        text = bytes(layout.LONGEST_TEXT + 1)
    if len(text) > layout.LONGEST_TEXT:
        return [(0, 0, log.string_id(value) | _VALUE | layout.VALUE_STRING << 40)]
    records = []
    for done in range(0, max(len(text), 1), layout.VALUE_BYTES):
        first, second = _TEXT.unpack(text[done : done + layout.VALUE_BYTES].ljust(16, b"\0"))
        kind = layout.VALUE_MORE if done else layout.VALUE_TEXT
        records.append((first, second, _VALUE | kind << 40 | len(text) << 48))
    return records


class span:
    """A named interval of the program: a context manager, a decorator, or begin() and end().

    It may nest, overlap, be entered again, cross awaits and threads, or never end (then it
    is kept and marked unfinished). While nothing records it costs next to nothing; a span
    made then records once recording is on. Attribute values are str, int, float, bool,
    None, scalars of NumPy, or lists and dicts of these; anything else raises UsageError.
    """

    __slots__ = ("_attributes", "_category", "_identity", "_name", "_openings")

    def __init__(self, name: str = _MISSING, /, *more: object, **attributes: Any) -> None:
        # A span object may be entered again before it is left: by recursion, by threads, by tasks.
        # The latest opening of each lane; only the lane's own thread adds one.
        self._openings: dict[int, _Opening] = {}
        if more or name is _MISSING:
            if more or "name" not in attributes:
                count = len(more) + (name is not _MISSING)
                message = f"span() takes a name and keyword attributes ({count} values given)"
                raise TypeError(message)
            name = attributes.pop("name")
        if type(name) is not str:
            name = _exact("span", name)
        self._name = name
        self._category = 0  # record_code() << 40, where a record has it
        self._attributes = _checked("span", attributes) if attributes else None
        self._identity = (0, 0)  # with attributes: a log's serial and the names there

    def begin(self) -> span:
        """Begin the span now and return it."""
        generation = _recorder.control[_GENERATION]
        if not generation & 1:
            return self
        try:
            ring = _thread.ring
            if ring.generation != generation:
                attached = _recorder.attach(generation)
                if attached is None:
                    return self
                ring = attached
            names = ring.strings.get(self._name) if self._attributes is None else None
            if names is None:
                names = self._identify(ring)
                if not names:
                    return self
            lane = ring.lane
            if lane < 0 or "asyncio" in _modules:
                lane = _lane(ring)
            if not ring.free:
                ring.empty_table()
            slot = ring.free.pop()
            openings = self._openings
            earlier = openings.get(lane)
            start_ns = clock_ns()
            _put_open(ring.memory, slot * 8 + 8, names, lane | self._category >> 8)
            # No call between these two: it is open for both, or for neither.
            openings[lane] = (ring, slot, start_ns, names, lane, earlier)
            ring.words[slot] = start_ns
        except RecursionError:
            pass
        return self

    def end(self, _type: object = None, _error: object = None, _trace: object = None, /) -> None:
        """End what the latest begin() of this thread and task began; nothing if none did."""
        openings = self._openings
        if not openings:
            return
        end_ns = clock_ns()
        generation = _recorder.control[_GENERATION]
        try:
            ring = _thread.ring
            if ring.generation != generation:
                attached = _recorder.attach(generation) if generation & 1 else None
                if attached is None:
                    # Recording was stopped in between: where it was begun it shows as unfinished.
                    self._take_latest()
                    return
                ring = attached
            # A thread or task that ends another's span need not have a lane of its own.
            lane = ring.lanes.get(_lane_key(), -1) if "asyncio" in _modules else ring.lane
            opening = openings.pop(lane, None)
            if opening is None:
                opening = self._take_latest()
                if opening is None:
                    return
            elif opening[5] is not None:
                openings[lane] = opening[5]
            owner, slot, start_ns, names, lane, _ = opening
            if owner.serial != ring.serial:
                return
            # As ring.put(), without the cost of the call.
            while ring.head >= ring.limit:
                if not ring.make_room():
                    return
            place = ring.head
            ring.head = place + 1
            _put_record(
                ring.memory,
                _RECORDS + (place & _MASK) * 32,
                start_ns,
                end_ns - start_ns,
                names,
                lane | _SPAN | self._category,
            )
            ring.words[_HEAD] = ring.head
            if owner is not ring:
                owner.close_for_another(slot, start_ns)
            elif owner.words[slot] == start_ns:  # else it had to make room
                owner.words[slot] = 0
                owner.free.append(slot)
        except RecursionError:
            pass

    __enter__ = begin
    __exit__ = end

    def _identify(self, ring: Ring) -> int:
        if self._attributes is None:
            return _identify(ring, self._name, None)
        serial, names = self._identity
        if serial != ring.serial:
            names = _identify(ring, self._name, self._attributes)
            # One that could not be written is asked for again.
            if self._name in ring.strings:
                self._identity = (ring.serial, names)
        return names

    def _take_latest(self) -> _Opening | None:
        """Take the latest opening, of whatever lane; another thread may be taking one too."""
        while self._openings:
            latest = max(self._openings.copy().values(), key=lambda opening: opening[2])
            if self._openings.pop(latest[4], None) is latest:
                if latest[5] is not None:
                    self._openings[latest[4]] = latest[5]
                return latest
        return None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the function with each of its runs inside the span."""
        if len(arguments) != 1 or keywords:
            message = "a span is called with the one function that it decorates"
            raise TypeError(message)
        return _support.decorate(self, arguments[0])

    @property
    def name(self) -> str:
        """The name, as given."""
        return self._name

    @property
    def attributes(self) -> dict[str, Any]:
        """A copy of the attributes."""
        return dict(self._attributes or ())

    def __repr__(self) -> str:
        if self._attributes is None:
            return f"strobe.span({self._name!r})"
        return f"strobe.span({self._name!r}, **{self._attributes!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that holds a span can be copied and pickled: the copy is a span that is not open.
        return (_support.rebuild_span, (self._name, self.attributes))

    def __init_subclass__(cls) -> None:
        message = "type 'strobe.span' is not an acceptable base type"
        raise TypeError(message)


def source_span(name: str, code: int, attributes: dict[str, Any] | None = None, /) -> span:
    """Return a span that is not the user's; the code is that of model.tables.record_code."""
    made = span(name)
    made._attributes = attributes or None
    made._category = code << 40
    return made


def source_instant(name: str, code: int, /, **attributes: Any) -> None:
    """Record a point in time that is not the user's."""
    checked = _checked("instant", attributes) if attributes else None
    _put_point(name, checked, 0, _INSTANT | code << 40)


def source_counter(name: str, value: float, code: int, /) -> None:
    """Record the value of a counter that is not the user's."""
    _put_point(name, None, _bits(value), _COUNTER | code << 40)


def _exact(caller: str, name: object) -> str:
    """A str subclass may compare as it likes; the text alone counts."""
    if not isinstance(name, str):
        _support.refuse_name(caller, name)
    return str.__str__(name)


def _checked(caller: str, attributes: dict[str, Any]) -> dict[str, Any]:
    if _are_plain(attributes.values()):
        return attributes
    return _support.check_attributes(caller, attributes)


def _current_ring() -> Ring | None:
    """Return the calling thread's ring, None while recording is off or impossible."""
    generation = _recorder.control[_GENERATION]
    if not generation & 1:
        return None
    ring = _thread.ring
    return ring if ring.generation == generation else _recorder.attach(generation)


def _put_point(name: str, attributes: dict[str, Any] | None, value: int, kind: int) -> None:
    now_ns = clock_ns()
    ring = _current_ring()
    if ring is None:
        return
    names = ring.strings.get(name) if attributes is None else None
    names = names or _identify(ring, name, attributes)
    if names:
        ring.put(now_ns, value, names, _lane(ring) | kind)


def instant(name: str = _MISSING, /, *more: object, **attributes: Any) -> None:
    """Record a point in time."""
    if more or name is _MISSING:
        count = len(more) + (name is not _MISSING)
        message = f"instant() takes a name and keyword attributes ({count} values given)"
        raise TypeError(message)
    if type(name) is not str:
        name = _exact("instant", name)
    _put_point(name, _checked("instant", attributes) if attributes else None, 0, _INSTANT)


def counter(name: str = _MISSING, value: float = _MISSING, /, *more: object) -> None:
    """Record the value of a counter at this instant, as a float64."""
    if more or value is _MISSING:
        count = len(more) + (name is not _MISSING) + (value is not _MISSING)
        message = f"counter() takes a name and a value ({count} values given)"
        raise TypeError(message)
    if type(name) is not str:
        name = _exact("counter", name)
    try:
        bits = _bits(value)
    except struct.error:
        _support.refuse_value(name, value)
    _put_point(name, None, bits, _COUNTER)


def _bits(value: float) -> int:
    return int.from_bytes(_pack_float(value), "little")


def step(window: int, number: int, start_ns: int, samples: int, request: bool, /) -> None:
    """Record that a step of a window, or a request, ends now."""
    dur_ns = clock_ns() - start_ns
    ring = _current_ring()
    if ring is not None:
        kind = _STEP | request << 40 | (window & 0xFFFF) << 48
        ring.put(start_ns, dur_ns, number | samples << 32, _lane(ring) | kind)


def calibrate() -> tuple[float, float]:
    """Return the nanoseconds that one span costs while this recorder records: plain, with a value.

    Measured on a ring that no log knows, by copies of begin() and end() that see only that ring.
    """
    log = Log.__new__(Log)
    log.serial = 1
    log.strings, log.string_bytes = {"": 1, "value": 2}, 0
    log.next_values = 0
    log.lock = threading.RLock()
    ring = Ring(log, 0, map_private(), anonymous=False)
    ring.generation = 1
    ring.lanes[_lane_key()] = 0
    ring.find_lane(_lane_key())
    own = Thread()
    own.ring = ring
    control = memoryview(bytearray(layout.PAGE_BYTES)).cast("I")
    control[_GENERATION] = 1
    page = SimpleNamespace(control=control)
    seen = {**globals(), "_thread": own, "_recorder": page}
    # Copied, because CPython rewrites a code object for the globals that it meets.
    begin = FunctionType(span.begin.__code__.replace(), seen)
    end = FunctionType(span.end.__code__.replace(), seen, None, span.end.__defaults__)
    least_ns = []
    for attributes in ({}, {"value": 1 << 20}):
        spent_ns = []
        for _ in range(40):
            began_ns = clock_ns()
            for _ in range(32):
                probe = span("", **attributes)
                begin(probe)
                end(probe)
            spent_ns.append((clock_ns() - began_ns) / 32)
        least_ns.append(min(spent_ns))
    return least_ns[0], least_ns[1]
