# SPDX-License-Identifier: Apache-2.0
"""The figures of a pipeline of MindData, beside those that MindSpore 2.10.0 computed of it."""

from __future__ import annotations

from strobe.analysis.minddata import Stage, advise, batch_times, linked, read_stages

# What MindData saved of a pipeline Generator -> Map -> Batch.
QUEUES = {
    "op_info": [
        {
            **{"children": [1], "num_workers": 2, "op_id": 0, "op_type": "BatchOp"},
            "metrics": {"output_queue": {"length": 16, "size": [13, 13, 1]}},
        },
        {
            **{"children": [2], "num_workers": 2, "op_id": 1, "op_type": "MapOp"},
            "metrics": {"output_queue": {"length": 16, "size": [0, 0, 0]}},
        },
        {
            **{"num_workers": 1, "op_id": 2, "op_type": "GeneratorOp"},
            "metrics": {"output_queue": {"length": 16, "size": [0, 0, 0]}},
        },
        {"children": [0], "metrics": None, "num_workers": 1, "op_id": 3, "op_type": "EpochCtrlOp"},
    ],
    "sampling_interval": 10,
}
USE = {
    "op_info": [
        {"op_id": 0, "metrics": {"user_utilization": [10, 20], "sys_utilization": [0, 10]}},
        {"op_id": 3, "metrics": None},
    ]
}


def test_stages_have_the_figures_of_mindspore() -> None:
    batch, mapping, generator, control = read_stages(QUEUES, USE)

    assert (batch.label, batch.parent, batch.children) == ("Batch(id=0)", 3, [1])
    assert (batch.mean_size, batch.full_percent, batch.empty_percent) == (9.0, 56.25, 0.0)
    assert (mapping.full_percent, mapping.empty_percent) == (0.0, 100.0)
    assert (batch.cpu_percent, batch.cpu_percent_per_worker) == (20.0, 10.0)
    assert (generator.cpu_percent, generator.children) == (None, [])
    assert (control.mean_size, control.full_percent, control.parent) == (None, None, None)


def test_the_first_batch_is_no_measure() -> None:
    lines = ["0 1 1 0 5", "0 2 1 90 5", "0 0 1 90 5", "1 16 1 0 5"]
    lines += ["0 1 2 1 9", "0 2 2 4 9", "0 0 2 3 9", "0 2 3 6 11", "0 0 3 5 11"]

    assert batch_times(lines) == {"pipeline": 4.0, "push": 1.0, "batch": 5.0}
    assert batch_times(lines[:4]) == {"pipeline": None, "push": None, "batch": None}


def stage(number: int, name: str, full: int, cpu: float, **rest: object) -> Stage:
    given = {"workers": 1, "children": [], "parent": None, "capacity": 10, "sizes": [full] * 4}
    return Stage(id=number, name=name, cpu_percent=cpu, **{**given, **rest})  # type: ignore[arg-type]


def test_the_operator_between_a_full_and_an_empty_queue_is_blamed() -> None:
    slow_map = [
        stage(0, "Batch", 0, 5, children=[1]),
        stage(1, "Map", 0, 95, children=[2]),
        stage(2, "Generator", 9, 10),
    ]
    slow_reading = [stage(0, "Batch", 0, 5, children=[1]), stage(1, "Generator", 0, 40)]
    few = [stage(1, "Map", 0, 95, children=[2], sizes=[0]), stage(2, "Generator", 9, 10)]

    found = advise(slow_map)
    assert found.bottleneck == "Map(id=1)"
    assert "95.0% of a processor" in found.cpu[0]
    reading = advise(slow_reading)
    assert reading.bottleneck is None
    assert "Generator(id=1), which reads the data, fills 0.0%" in reading.queues[0]
    assert advise(few).bottleneck is None
    assert "may be more than it needs" in advise([stage(0, "Map", 5, 8, workers=4)]).cpu[0]


def test_operators_without_a_queue_stand_between_none() -> None:
    """Zip, Take and the like only hand rows on. MindSpore 2.10 lists and links the same ones."""
    inline = {"capacity": None, "sizes": None}
    stages = [
        stage(0, "EpochCtrl", 0, 0, children=[1], **inline),
        stage(1, "Batch", 0, 5, children=[2], parent=0),
        stage(2, "Zip", 0, 0, children=[3, 5], parent=1, **inline),
        stage(3, "Take", 0, 0, children=[4], parent=2, **inline),
        stage(4, "Map", 9, 10, children=[6], parent=3),
        stage(5, "Generator", 9, 10, parent=2),
        stage(6, "Generator", 9, 10, parent=4),
    ]

    assert [(each.id, each.parent, each.children) for each in linked(stages)] == [
        (0, None, [1]),
        (1, 0, [5, 4]),
        (5, 1, []),
        (4, 1, [6]),
        (6, 4, []),
    ]
    assert advise(stages).bottleneck == "Batch(id=1)"


def test_a_damaged_file_may_go_round_in_circles() -> None:
    inline = {"capacity": None, "sizes": None}
    stages = [
        stage(0, "Batch", 0, 5, children=[1]),
        stage(1, "Zip", 0, 0, children=[1, 2, 0], parent=0, **inline),
        stage(2, "Generator", 9, 10, children=[2], parent=1),
    ]

    assert [each.id for each in linked(stages)] == [0, 2]
