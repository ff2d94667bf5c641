# SPDX-License-Identifier: Apache-2.0
r"""Text that a table can hold: any Python str as valid Unicode, and back.

A str may hold lone surrogates (file names, broken input), an Arrow string may not. They are
written as they would be in source code; backslashes that would then be ambiguous are doubled:

    str                           escaped
    plain, C:\temp, \n            the same
    <U+D83D>                      \ud83d
    \<U+D83D>                     \\\ud83d
    \ud83d  (six characters)      \\ud83d
"""

from __future__ import annotations

import re

# A run is matched from its first backslash only, else a long one would take quadratic time.
_WRITTEN = r"ud[89a-f][0-9a-f]{2}"
_TO_ESCAPE = re.compile(rf"(?<!\\)(\\*)(?:([\ud800-\udfff])|(?<=\\)(?={_WRITTEN}))")
_TO_UNESCAPE = re.compile(rf"(?<!\\)(\\+)({_WRITTEN})")


def escape(text: str) -> str:
    """Return `text` with lone surrogates written out; the same text if it has none to confuse."""
    if text.isascii() and "\\ud" not in text:
        return text
    return _TO_ESCAPE.sub(_escape, text)


def unescape(text: str) -> str:
    """Return the text that `escape` was given."""
    if "\\ud" not in text:
        return text
    return _TO_UNESCAPE.sub(_unescape, text)


def _escape(match: re.Match[str]) -> str:
    backslashes, surrogate = match.groups()
    return 2 * backslashes + (f"\\u{ord(surrogate):x}" if surrogate else "")


def _unescape(match: re.Match[str]) -> str:
    backslashes, written = match.groups()
    half, odd = divmod(len(backslashes), 2)
    return half * "\\" + (chr(int(written[1:], 16)) if odd else written)
