# SPDX-License-Identifier: Apache-2.0
import numpy as np
from numpy.typing import NDArray

# Any C-contiguous buffer of the right width will do; arrays are what we pass.
def nest(
    lane: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    parent: NDArray[np.int64],
    self_ns: NDArray[np.int64],
    /,
) -> None: ...
def number_paths(
    parent: NDArray[np.int64],
    code: NDArray[np.int32],
    path: NDArray[np.int64],
    above: NDArray[np.int64],
    last: NDArray[np.int32],
    /,
) -> None: ...
def cover(
    lane: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    name: NDArray[np.int32],
    covered_ns: NDArray[np.int64],
    /,
) -> None: ...
