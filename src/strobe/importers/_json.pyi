# SPDX-License-Identifier: Apache-2.0

from strobe.model.arrays import Int64

# Those that return five numbers: a fault (an index of json_rows.FAULTS, 0 for none), where it is or
# where to go on, whether there is more, how many whole rows were found and where the last one ends.
def members(
    data: bytes,
    at: int,
    keys: bytes,
    places: Int64,
    begin: Int64,
    end: Int64,
    /,
) -> tuple[int, int, int, int, int]: ...
def rows(
    data: bytes,
    at: int,
    keys: bytes,
    places: Int64,
    outer: int,
    begin: Int64,
    end: Int64,
    /,
) -> tuple[int, int, int, int, int]: ...
def decimals(
    data: bytes,
    begin: Int64,
    end: Int64,
    places: int,
    suffix: bytes,
    out: Int64,
    /,
) -> int: ...
def shorten(data: bytes, begin: Int64, end: Int64, /) -> tuple[int, int, int, int, int]: ...
