# SPDX-License-Identifier: Apache-2.0

from pathlib import Path
from typing import Any

def begin(table: Any, folder: Path, least_bytes: int, left_free_bytes: int, /) -> Any: ...
def end(table: Any, before: Any, /) -> None: ...
