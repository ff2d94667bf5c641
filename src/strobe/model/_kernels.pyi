# SPDX-License-Identifier: Apache-2.0

from strobe.model.arrays import Int32, Int64

# Any C-contiguous buffer of the right width will do; arrays are what we pass.
def nest(
    lane: Int32,
    start_ns: Int64,
    end_ns: Int64,
    parent: Int64,
    self_ns: Int64,
    /,
) -> None: ...
def number_paths(
    parent: Int64,
    code: Int32,
    path: Int64,
    above: Int64,
    last: Int32,
    /,
) -> None: ...
def cover(
    lane: Int32,
    start_ns: Int64,
    end_ns: Int64,
    name: Int32,
    covered_ns: Int64,
    /,
) -> None: ...
def innermost(parent: Int64, found: Int64, /) -> None: ...
