# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numpy.typing import NDArray

# Each returns a fault (an index of wire.FAULTS, 0 for none), where it is, and how much was found.
def find(
    data: bytes,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    number: int,
    parent: NDArray[np.int64],
    found_begin: NDArray[np.int64],
    found_end: NDArray[np.int64],
    /,
) -> tuple[int, int, int]: ...
def numbers(
    data: bytes,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    number: int,
    parent: NDArray[np.int64],
    value: NDArray[np.int64],
    /,
) -> tuple[int, int, int]: ...
def number(
    data: bytes,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    table: NDArray[np.int64],
    first: NDArray[np.int64],
    code: NDArray[np.int64],
    /,
) -> tuple[int, int, int]: ...
def columns(
    data: bytes,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    numbers: NDArray[np.int64],
    kinds: NDArray[np.int64],
    out: NDArray[np.int64],
    /,
) -> tuple[int, int, int]: ...
