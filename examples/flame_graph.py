# SPDX-License-Identifier: Apache-2.0
"""Which Python function takes the time? Records every call of a small program and draws it.

    python examples/flame_graph.py [--sample] [--output flame.html]

Needs nothing but strobe.
"""

import argparse
from pathlib import Path

import strobe
from strobe.reports.flame import page


def tokens(text: str) -> list[str]:
    return [clean(word) for word in text.split()]


def clean(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalpha())


def count(words: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return found


def epoch(text: str) -> int:
    with strobe.span("count"):
        return len(count(tokens(text)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", action="store_true", help="sample stacks, do not trace calls")
    parser.add_argument("--output", type=Path, default=Path("flame.html"))
    arguments = parser.parse_args()

    text = "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 200
    with strobe.Profiler(with_stack="sample" if arguments.sample else True) as profiler:
        for _ in range(20):
            epoch(text)

    print(profiler.summary(top=8))
    arguments.output.write_text(page(profiler.recording.flame(), "flame_graph.py"))
    print(f"open {arguments.output} in a browser")


if __name__ == "__main__":
    main()
