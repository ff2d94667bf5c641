# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numpy.typing import NDArray

# Those that return five numbers: a fault (an index of json_rows.FAULTS, 0 for none), where it is or
# where to go on, whether there is more, how many whole rows were found and where the last one ends.
def members(
    data: bytes,
    at: int,
    keys: bytes,
    places: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    /,
) -> tuple[int, int, int, int, int]: ...
def rows(
    data: bytes,
    at: int,
    keys: bytes,
    places: NDArray[np.int64],
    outer: int,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    /,
) -> tuple[int, int, int, int, int]: ...
def decimals(
    data: bytes,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    places: int,
    suffix: bytes,
    out: NDArray[np.int64],
    /,
) -> int: ...
def shorten(
    data: bytes, begin: NDArray[np.int64], end: NDArray[np.int64], /
) -> tuple[int, int, int, int, int]: ...
