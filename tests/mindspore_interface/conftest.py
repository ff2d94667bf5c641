# SPDX-License-Identifier: Apache-2.0
"""A program with operators and no framework: a source's spans, made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from programs import Program

TRAINING = """
import json, strobe.mindspore as ms
from strobe.model.tables import CATEGORIES
from strobe.record import recorder

SCOPE = "Default/network-WithLossCell/_backbone-Net/fc-Dense/"

def span(name, category, told=None):
    return recorder.core.source_span(name, CATEGORIES.index(category), *([told] if told else []))

def operator(kind, full_name, phase, shapes):
    told = {"full_name": full_name, "phase": phase, "shapes": shapes}
    with span(kind, "operator", told):
        time.sleep(0.001)

def step(number=0):
    with span("enumerate(Dataset)#Iterator", "data_loading"):
        time.sleep(0.001)
    with span("TrainOneStepCell", "annotation", {"ends": "step", "phase": None}):
        rows = 2 + number
        operator("MatMul", SCOPE + "MatMul-op0", "forward", [[rows, 2], [2, 2], None])
        operator("MatMul", "Gradients/" + SCOPE + "Grad_MatMul/MatMul-op0", "backward", [[2, rows]])
        operator("Momentum", "Default/optimizer-Momentum/Momentum-op0", "optimizer", [[2, 2]])
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program("c", tmp_path)
    yield made
    made.end()
