# SPDX-License-Identifier: Apache-2.0
"""Command lines and environments without what looks like a secret.

When in doubt a value goes: a hyperparameter that cannot be read is less harm than a key that can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

REDACTED = "[redacted]"
MAX_CHARACTERS = 4096  # of one value; what is longer is no setting but a file

Secrecy = Literal["never", "unless a number", "always"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET = re.compile(r"secret|passw|passphrase|credential")
_SECRET_WORD = re.compile(r"auth(?!or(s|ed|ing|ship)?$)\w*|\w*auth|pass|bearer|cookies?")
# A count of tokens or the size of a key is a number; a token or a key is not.
_SECRET_UNLESS_NUMBER = re.compile(r"\w*(token|key|pat)s?")
_LIST = re.compile(r"(tokens|keys|pats|secrets|passwords|passphrases|credentials|cookies)$")

_SWITCH = re.compile(r"(true|false|yes|no|on|off|none|null|)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d{1,9}(\.\d*)?(e[+-]?\d{1,3})?[kmgb]?", re.IGNORECASE)
_NAME = re.compile(r"[-+~]*[A-Za-z_][\w.-]*")
_FLAG = re.compile(r"--.*|-[A-Za-z]", re.DOTALL)

# user:password@ up to the last @ before the path; a port is no password
_URL = re.compile(r"(?P<head>[A-Za-z][\w+.-]{0,30}://[^\s/@:]*):(?!\d{1,5}(?:[/?#]|$))[^\s/]*@")
_URL_USER = re.compile(r"(?P<head>[A-Za-z][\w+.-]{0,30}://)[^\s/@:]{20,}@")
# name=value, name: value, "name": "value" anywhere in a text; lengths are bounded so that a huge
# text takes no longer than its length
_PAIR = re.compile(
    r"""(?<![\w.-])
    (?P<name>[\w.-]{0,64}?(?:token|secret|pass|pwd|key|pat|credential|auth|bearer|cookie)[\w.-]{0,64})
    (?P<between>\\{0,8}["']?\s{0,8}[=:]\s{0,8})
    (?P<value>\\*"[^"]*"?|\\*'[^']*'?|(?:(?:bearer|basic|digest|token)\s+)?[^\s"'&,;]+)""",
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = re.compile(r"(?P<head>\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
# What the keys of well-known services look like.
_SHAPE = re.compile(
    r"\b(?:sk|pk|rk)-[\w-]{16,}|\bhf_\w{16,}|\bgh[pousr]_\w{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bxox[abeprs]-[\w-]{10,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[\w-]{30,}"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|-----BEGIN [A-Z ]*PRIVATE KEY-----.*",
    re.DOTALL,
)


def redact_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line without secrets: --token=X, --token X, name=X, and inside of texts."""
    shown: list[str] = []
    wanting = ""  # the flag whose value comes next, if that is to be hidden
    for argument in arguments:
        if wanting and not _FLAG.fullmatch(argument):
            shown.append(_hide(argument, secrecy(wanting)))
            if shown[-1] != REDACTED or not _LIST.search(wanting.lower()):
                wanting = ""
            continue
        name, equals, value = argument.partition("=")
        named = _NAME.fullmatch(name) is not None
        hidden = secrecy(name) if named else "never"
        wanting = name if argument.startswith("-") and not equals and hidden != "never" else ""
        if equals and hidden != "never":
            shown.append(f"{name}={_hide(value, hidden)}")
        else:
            shown.append(redact_text(argument))
    return shown


def redact_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without the values that look like secrets."""
    return {
        name: redact_text(value) if secrecy(name) == "never" else _hide(value, secrecy(name))
        for name, value in variables.items()
    }


def redact_text(text: str) -> str:
    """Return a text without passwords in URLs, secret=value pairs and well-known kinds of keys.

    It is cut after MAX_CHARACTERS.
    """
    shown = text[: 16 * MAX_CHARACTERS]
    shown = _URL.sub(rf"\g<head>:{REDACTED}@", shown)
    shown = _URL_USER.sub(rf"\g<head>{REDACTED}@", shown)
    shown = _hide_pairs(shown)
    shown = _BEARER.sub(rf"\g<head>{REDACTED}", shown)
    shown = _SHAPE.sub(REDACTED, shown)
    if len(shown) <= MAX_CHARACTERS and len(text) <= 16 * MAX_CHARACTERS:
        return shown
    return f"{shown[:MAX_CHARACTERS]}... ({len(text)} characters)"


def secrecy(name: str) -> Secrecy:
    """Say whether what is called this is a secret, judged word by word: a tokenizer is none."""
    words = [word.lower() for word in _WORD.findall(name)]
    if _SECRET.search("".join(words)) or (len(words) > 1 and "pwd" in words):  # PWD is a folder
        return "always"
    if any(_SECRET_WORD.fullmatch(word) for word in words):
        return "always"
    if any(_SECRET_UNLESS_NUMBER.fullmatch(word) for word in words):
        return "unless a number"
    return "never"


def _hide(value: str, hidden: Secrecy) -> str:
    kept = _SWITCH.fullmatch(value) or (hidden == "unless a number" and _NUMBER.fullmatch(value))
    return value if kept else REDACTED


def _hide_pairs(text: str) -> str:
    parts: list[str] = []
    done = 0
    match = _PAIR.search(text)
    while match:
        hidden = secrecy(match["name"])
        start = match.start("value")
        parts.append(text[done:start])
        done = start  # a harmless value may hold pairs of its own
        if hidden != "never":
            value = match["value"]
            bare = value.strip("\\\"'")
            parts.append(value.replace(bare, _hide(bare, hidden)) if bare else value)
            done = match.end()
        match = _PAIR.search(text, done)
    return "".join([*parts, text[done:]])
