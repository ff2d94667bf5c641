# SPDX-License-Identifier: Apache-2.0

import mmap

from strobe.model.arrays import Int64

# Each returns a fault (an index of wire.FAULTS, 0 for none), where it is, and how much was found.
def find(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    number: int,
    parent: Int64,
    found_begin: Int64,
    found_end: Int64,
    /,
) -> tuple[int, int, int]: ...
def numbers(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    number: int,
    parent: Int64,
    value: Int64,
    /,
) -> tuple[int, int, int]: ...
def number(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    table: Int64,
    first: Int64,
    code: Int64,
    /,
) -> tuple[int, int, int]: ...
def columns(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    numbers: Int64,
    kinds: Int64,
    out: Int64,
    /,
) -> tuple[int, int, int]: ...
