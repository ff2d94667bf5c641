# SPDX-License-Identifier: Apache-2.0
"""What looks like a secret is not kept; what only sounds like one is."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.model.redact import (
    MAX_CHARACTERS,
    REDACTED,
    redact_arguments,
    redact_environment,
    redact_text,
    secrecy,
)

R = REDACTED


@pytest.mark.parametrize(
    "name",
    [
        *("--token", "--hf_token", "HF_TOKEN", "hfToken", "--hftoken", "--auth-token", "--tokens"),
        *("--api-key", "API_KEY", "apikey", "wandb.api_key", "AWS_SECRET_ACCESS_KEY", "SSHKey"),
        *("--password", "PGPASSWORD", "dbPassword", "passwd", "--passphrase", "db_pwd", "--pass"),
        *("--credentials", "GOOGLE_APPLICATION_CREDENTIALS", "--auth", "OAUTH", "Authorization"),
        *("client_secret", "SECRETS", "cookie", "GITHUB_PAT"),
    ],
)
def test_a_name_that_says_secret_is_one(name: str) -> None:
    assert secrecy(name) != "never"


@pytest.mark.parametrize(
    "name",
    [
        *("--tokenizer", "tokenize", "--tokenizer-path", "author", "--authors", "AUTHOR_NAME"),
        *("PWD", "OLDPWD", "--keyboard", "passes", "compass", "--lr", "RANK", "path", "--patience"),
        *("", "-", "--", "--data-path", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_name_that_only_sounds_like_one_is_none(name: str) -> None:
    assert secrecy(name) == "never"


@pytest.mark.parametrize(
    ("given_line", "shown"),
    [
        (["t.py", "--token", "abc", "x"], ["t.py", "--token", R, "x"]),
        (["t.py", "--token=abc", "x"], ["t.py", f"--token={R}", "x"]),
        (["t.py", "--token=a=b=c"], ["t.py", f"--token={R}"]),
        (["-token", "abc"], ["-token", R]),
        (["--password", "-abc"], ["--password", R]),
        (["--password", "1234"], ["--password", R]),
        (["--password"], ["--password"]),
        (["--password", "--lr", "3"], ["--password", "--lr", "3"]),
        (["--use-auth", "-v", "x"], ["--use-auth", "-v", "x"]),
        (["--use-auth-token", "True"], ["--use-auth-token", "True"]),
        (["--max-tokens", "128", "x"], ["--max-tokens", "128", "x"]),
        (["--num-key-value-heads=8"], ["--num-key-value-heads=8"]),
        (["--tokenizer", "gpt2"], ["--tokenizer", "gpt2"]),
        (["--api-keys", "a", "b", "--lr", "1"], ["--api-keys", R, R, "--lr", "1"]),
        (["trainer.lr=3", "+wandb.api_key=abc"], ["trainer.lr=3", f"+wandb.api_key={R}"]),
        (["--env=HF_TOKEN=abc"], [f"--env=HF_TOKEN={R}"]),
        (["-e", "HF_TOKEN=abc"], ["-e", f"HF_TOKEN={R}"]),
        (["-H", "Authorization: Bearer abc"], ["-H", f"Authorization: {R}"]),
        (["-H", "X-Api-Key: abc"], ["-H", f"X-Api-Key: {R}"]),
        (
            ["--config", '{"api_key": "a b", "lr": 3}'],
            ["--config", f'{{"api_key": "{R}", "lr": 3}}'],
        ),
        (["-c", "token = 'a b'; x = 1"], ["-c", f"token = '{R}'; x = 1"]),
        (["--url=https://me:pw@host/x"], [f"--url=https://me:{R}@host/x"]),
        (["https://h/x?token=abc&y=1"], [f"https://h/x?token={R}&y=1"]),
        ([], []),
        (["", "--", "-", "="], ["", "--", "-", "="]),
    ],
)
def test_command_lines(given_line: list[str], shown: list[str]) -> None:
    assert redact_arguments(given_line) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:p@ss:w@host:5432/db", f"postgres://me:{R}@host:5432/db"),
        ("redis://:pw@host", f"redis://:{R}@host"),
        ("a http://u:1@h b http://v:2@i", f"a http://u:{R}@h b http://v:{R}@i"),
        ("https://0123456789abcdef01234567@github.com/x", f"https://{R}@github.com/x"),
        ("http://host:8080/user@domain", "http://host:8080/user@domain"),
        ("ssh://git@github.com/x", "ssh://git@github.com/x"),
        ("http://localhost:8080", "http://localhost:8080"),
        ("me@host:path", "me@host:path"),
        ("C:\\temp\\key", "C:\\temp\\key"),
        ("sk-proj-0123456789abcdef0123", R),
        ("x hf_abcdefghijklmnopqrst y", f"x {R} y"),
        ("ghp_0123456789012345678901234567890123456", R),
        ("AKIAIOSFODNN7EXAMPLE", R),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ", R),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n", R),
        ("curl -H 'bearer abcdefghijkl'", f"curl -H 'bearer {R}'"),
        ('{\\"token\\": \\"abc\\"}', f'{{\\"token\\": \\"{R}\\"}}'),
        ("monkey=banana tokenizer=gpt2", f"monkey={R} tokenizer=gpt2"),
        ("0,1,2,3", "0,1,2,3"),
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert redact_text(text) == shown


def test_environments() -> None:
    shown = redact_environment(
        {"HF_TOKEN": "abc", "RANK": "3", "MAX_TOKENS": "7", "PROXY": "http://u:p@h:1"}
    )

    assert shown == {"HF_TOKEN": R, "RANK": "3", "MAX_TOKENS": "7", "PROXY": f"http://u:{R}@h:1"}


@given(st.text(alphabet="abcXYZ019+/=_.~-", min_size=6).filter(lambda text: not text.isdecimal()))
def test_the_value_of_a_password_never_shows(password: str) -> None:
    secret = f"Q{password}Q"
    lines = [
        *(["--password", secret], [f"--password={secret}"], [f"db.password={secret}"]),
        *(["-H", f"Authorization: Basic {secret}"], [f'{{"password": "{secret}"}}']),
    ]

    for line in lines:
        assert secret not in " ".join(redact_arguments(line))


@given(st.lists(st.text(max_size=20)))
def test_any_command_line_keeps_its_length(arguments: list[str]) -> None:
    assert len(redact_arguments(arguments)) == len(arguments)


@pytest.mark.parametrize(
    "text", ["token" * 200_000, "a" * 10**6, "://" * 300_000, "key=" * 200_000]
)
def test_a_huge_argument_is_cut_and_takes_no_time(text: str) -> None:
    began = time.process_time()

    shown = redact_text(text)

    assert len(shown) < MAX_CHARACTERS + 40
    assert time.process_time() - began < 5
