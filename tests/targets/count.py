# SPDX-License-Identifier: Apache-2.0
"""Records without end. A shared file says how many spans have ended in each of its lanes.

python count.py OUTPUT COUNTS threads|fork|spawn LANES numbered|alike
"""

import mmap
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

import strobe


def work(path: str, lane: int, lanes: int, numbered: bool) -> None:
    """Lane k counts in word k of the file; word 16 + k is its process.

    They begin together, or the first would have counted millions when a spawned one begins.
    """
    with Path(path).open("r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    words[16 + lane] = os.getpid()
    while not all(words[16 : 16 + lanes]):
        time.sleep(0.0005)
    span = strobe.span(f"lane {lane}")
    with strobe.span(f"outer {lane}"):
        ended = 0
        while True:
            if numbered:
                with strobe.span(f"lane {lane}", n=ended):
                    pass
            else:
                with span:
                    pass
            ended += 1
            words[lane] = ended


def main(output: str, counts: str, how: str, lanes: int, numbered: bool) -> None:
    sys.setswitchinterval(0.0002)
    strobe.Profiler(output=output).start()
    for lane in range(1, lanes):
        if how == "threads":
            threading.Thread(target=work, args=(counts, lane, lanes, numbered)).start()
        elif how == "spawn":
            context = multiprocessing.get_context("spawn")
            context.Process(target=work, args=(counts, lane, lanes, numbered)).start()
        elif os.fork() == 0:
            work(counts, lane, lanes, numbered)
    work(counts, 0, lanes, numbered)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "numbered")
