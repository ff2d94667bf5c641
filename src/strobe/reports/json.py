# SPDX-License-Identifier: Apache-2.0
"""Answers of analyses as values that JSON can hold: what `--json` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import polars as pl

from strobe.analysis.answers import Answers
from strobe.store.tables import Tables


def answer(tables: Tables, questions: Mapping[str, str]) -> dict[str, Any]:
    """Return what analyses answer: `questions` is key to the name of an analysis in Answers."""
    return {key: as_values(getattr(Answers, name)(tables)) for key, name in questions.items()}


def as_values(answer: object) -> Any:
    """Return a frame as a list of rows, a dataclass as a dict, and what else there is as it is."""
    if isinstance(answer, pl.LazyFrame):
        answer = answer.collect()
    if isinstance(answer, pl.DataFrame):
        return answer.to_dicts()
    if is_dataclass(answer) and not isinstance(answer, type):
        return {field.name: as_values(getattr(answer, field.name)) for field in fields(answer)}
    return answer


def json_text(content: object) -> str:
    """Return JSON for people and programs: indented, with a line break at its end."""
    return json.dumps(content, indent=1) + "\n"
