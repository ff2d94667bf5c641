# SPDX-License-Identifier: Apache-2.0
"""Sequences of texts, of which there may be more than fit into memory."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from strobe.model.arrays import Int64


class Packed(NamedTuple):
    """Texts one after the other."""

    lengths: Int64
    content: bytes


def pack(texts: Iterable[str]) -> Packed:
    """Return these texts one after the other."""
    encoded = [text.encode() for text in texts]
    return Packed(np.array([*map(len, encoded)], np.int64), b"".join(encoded))


class Texts(Sequence[str]):
    """Texts by number."""

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        """Return a text."""
        if isinstance(place, slice):
            return [self.text(number) for number in range(*place.indices(len(self)))]
        return self.text(place)

    def text(self, place: int) -> str:
        """Return a text."""
        raise NotImplementedError

    def packed(self, places: Int64) -> Packed:
        """Return these texts one after the other."""
        return pack([self.text(place) for place in places.tolist()])


class Chain(Texts):
    """Sequences of texts, one after the other."""

    def __init__(self, parts: Iterable[Sequence[str]]) -> None:
        self._parts: list[Sequence[str]] = []
        self._ends: list[int] = []
        for part in parts:
            for each in part._parts if isinstance(part, Chain) else [part]:
                if len(each):
                    self._parts.append(each)
                    self._ends.append(len(self) + len(each))

    def __len__(self) -> int:
        """Return how many there are."""
        return self._ends[-1] if self._ends else 0

    def text(self, place: int) -> str:
        """Return a text."""
        part = bisect.bisect_right(self._ends, place)
        return self._parts[part][place - self._first(part)]

    def packed(self, places: Int64) -> Packed:
        """Return these texts one after the other."""
        if len(places):
            part = bisect.bisect_right(self._ends, int(places.min()))
            texts = self._parts[part]
            if isinstance(texts, Texts) and int(places.max()) < self._ends[part]:
                return texts.packed(places - self._first(part))
        return super().packed(places)

    def _first(self, part: int) -> int:
        return self._ends[part] - len(self._parts[part])


class Attributes(Texts):
    """JSON objects as texts. Objects that the producer passes along need not be parsed again."""

    def __init__(
        self, texts: Sequence[str] = (), objects: Mapping[int, Mapping[str, Any]] | None = None
    ) -> None:
        self._texts = texts
        self._objects = dict(objects or {})

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._texts)

    def text(self, place: int) -> str:
        """Return a text."""
        return self._texts[place]

    def packed(self, places: Int64) -> Packed:
        """Return these texts one after the other."""
        return (
            self._texts.packed(places) if isinstance(self._texts, Texts) else super().packed(places)
        )

    def content(self, place: int) -> Mapping[str, Any]:
        """Return the object that a text stands for, an empty one for -1."""
        if place < 0:
            return {}
        if place not in self._objects:
            self._objects[place] = json.loads(self._texts[place])
        return self._objects[place]

    def joined(self, other: Attributes) -> Attributes:
        """Return both as one, this one first."""
        moved = {len(self) + place: content for place, content in other._objects.items()}
        return Attributes(Chain([self._texts, other._texts]), {**self._objects, **moved})
