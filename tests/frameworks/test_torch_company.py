# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operators are recorded in whatever company they run, and nothing of ours stays."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from drawing import steps_of
from programs import Program, count
from strobe.analysis.phase_times import phase_times
from strobe.model import check

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402  (needs torch)
from torch.nn.modules import module as hooks  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


def record(work: Callable[[], object], folder: Path, **options: Any) -> strobe.Recording:
    profiler = strobe.Profiler(output=folder, **options)
    with profiler:
        work()
    return obeying(profiler.recording)


def obeying(recording: strobe.Recording) -> strobe.Recording:
    assert check(recording.spans().collect()) == []
    return recording


def counts(recording: strobe.Recording) -> dict[str, int]:
    return count(recording.spans().collect())


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def trained() -> Callable[[], None]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(5, 8)).pow(2).mean().backward()
        optimizer.step()

    step()
    return step


def in_threads(work: Callable[[], object], threads: int = 1) -> list[int]:
    """Run it in threads of their own; their numbers."""
    numbers: list[int] = []

    def run() -> None:
        numbers.append(threading.get_native_id())
        work()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return numbers


# Threads


def test_every_thread_is_seen(tmp_path: Path) -> None:
    model = network().eval()
    numbers: list[int] = []

    def infer() -> None:
        with torch.inference_mode():
            for _ in range(3):
                model(torch.ones(2, 8))

    recording = record(lambda: numbers.extend(in_threads(infer, 4)), tmp_path)

    addmm = recording.spans().filter(pl.col("name") == "aten::addmm").collect()
    assert addmm.group_by("tid").len().sort("tid").rows() == [
        (number, 6) for number in sorted(numbers)
    ]


def test_a_backward_in_another_thread_belongs_to_its_forward(tmp_path: Path) -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    numbers: list[int] = []

    def work() -> None:
        in_threads(lambda: torch.ones(3, 3, requires_grad=True).exp().sin())
        loss = weight.exp().sum()
        numbers.extend(in_threads(loss.backward))

    recording = record(work, tmp_path)

    spans = recording.spans().collect()
    pairs = recording.links().filter(pl.col("kind") == "backward").collect()
    linked = [
        (spans.row(source, named=True), spans.row(target, named=True))
        for source, target in pairs.select("source", "target").iter_rows()
    ]
    names = [(source["name"], target["name"].split()[-1]) for source, target in linked]
    assert names == [("aten::sum", "SumBackward0"), ("aten::exp", "ExpBackward0")]
    assert {source["tid"] for source, _ in linked} == {threading.get_native_id()}
    assert {target["tid"] for _, target in linked} == set(numbers)


# Company


@pytest.mark.filterwarnings("ignore")
def test_names_of_any_length_and_many_of_them_are_kept_apart(tmp_path: Path) -> None:
    # The callback compares names in room for 40 and 104 bytes, in tables of 1024 and 512.
    names = [
        f"{'é' * length} {number}" for length in (1, 18, 19, 20, 50, 51, 200) for number in (1, 2)
    ]
    names += [f"region {number}" for number in range(2000)]

    def work() -> None:
        for name in names * 2:
            with torch.profiler.record_function(name):
                pass

    found = counts(record(work, tmp_path))

    assert {name: found.get(name) for name in names} == dict.fromkeys(names, 2)


def test_shapes_of_any_size_are_kept_apart(tmp_path: Path) -> None:
    # The callback packs two sizes into 64 bits where they fit.
    large = [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40]
    shapes = [[size, 3] for size in (1, *large)] + [[3, size] for size in (1, *large)]

    def work() -> None:
        for shape in shapes * 2:
            torch.zeros(()).expand(shape).t()

    spans = record(work, tmp_path, record_shapes=True).spans().collect()

    told = [json.loads(text)["shapes"][0] for text in spans.filter(name="aten::t")["attributes"]]
    assert told == shapes * 2


def test_a_compiled_model_is_recorded(tmp_path: Path) -> None:
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    results = []

    recording = record(lambda: results.append(compiled(torch.ones(2, 8))), tmp_path)
    again = record(lambda: compiled(torch.ones(2, 8)).sum().backward(), tmp_path)

    assert torch.equal(results[0], model(torch.ones(2, 8)))
    assert counts(recording)["aten::addmm"] >= 2
    names = counts(again)
    assert names["aten::addmm"] == 2
    assert names["CompiledFunctionBackward"] == 1


def test_layers_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    from strobe.sources.torch import modules

    known = []

    def work() -> None:
        models = [torch.nn.Sequential(torch.nn.Linear(4, 4)) for _ in range(50)]
        for model in models:
            model(torch.ones(1, 4))
        known.append(len(modules._paths))
        del model, models
        gc.collect()
        known.append(len(modules._paths))

    recording = record(work, tmp_path, with_modules=True)

    assert known == [100, 0]
    layers = recording.spans().filter(pl.col("category") == "module").collect()
    assert Counter(layers["name"]) == {"Sequential": 50, "Sequential.0": 50}


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
def test_a_model_is_compiled_while_its_layers_are_recorded(tmp_path: Path) -> None:
    model = network()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    results = []

    recording = record(
        lambda: results.append(compiled(torch.ones(2, 8))), tmp_path, with_modules=True
    )

    assert torch.equal(results[0], model(torch.ones(2, 8)))
    layers = recording.spans().filter(pl.col("category") == "module").collect()
    assert layers["name"].to_list() == ["OptimizedModule"]


def test_autocast_shows_the_types_it_chose(tmp_path: Path) -> None:
    model = network()

    def work() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(torch.ones(2, 8))

    spans = record(work, tmp_path, record_shapes=True).spans().collect()

    for text in spans.filter(pl.col("name") == "aten::addmm")["attributes"]:
        assert json.loads(text)["dtypes"][:3] == ["c10::BFloat16"] * 3


@pytest.mark.filterwarnings("ignore")
def test_a_traced_model_is_recorded(tmp_path: Path) -> None:
    model = network()
    traced = torch.jit.trace(model, torch.ones(2, 8))
    for _ in range(3):
        traced(torch.ones(2, 8))

    recording = record(lambda: traced(torch.ones(2, 8)), tmp_path, with_modules=True)

    assert counts(recording)["aten::addmm"] == 2
    also = record(lambda: torch.jit.trace(model, torch.ones(2, 8)), tmp_path, with_modules=True)
    assert counts(also)["aten::addmm"] >= 2


def test_a_dispatch_mode_sees_what_it_would(tmp_path: Path) -> None:
    class Log(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    step = trained()
    with Log() as alone, torch.profiler.profile() as profile:
        step()

    with Log() as recorded:
        options = {"record_shapes": True, "profile_memory": True, "with_modules": True}
        recording = record(step, tmp_path, **options)

    assert recorded.seen == alone.seen
    theirs = [each.name() for each in profile.profiler.kineto_results.events()]
    assert counts(recording)["aten::addmm"] == theirs.count("aten::addmm")


@pytest.mark.parametrize("memory", [False, True], ids=["ours", "ours-memory"])
@pytest.mark.parametrize("their_memory", [False, True], ids=["theirs", "theirs-memory"])
@pytest.mark.parametrize("order", ["inside", "around", "ours-first", "theirs-first"])
def test_torch_profiler_works_before_beside_and_after(
    order: str, their_memory: bool, memory: bool, tmp_path: Path
) -> None:
    step = trained()
    profiler = strobe.Profiler(output=tmp_path, profile_memory=memory)
    theirs = torch.profiler.profile(profile_memory=their_memory)
    first, second = (profiler, theirs) if order in ("inside", "ours-first") else (theirs, profiler)
    nested = order in ("inside", "around")

    first.start()
    step()
    second.start()
    step()
    (second if nested else first).stop()
    step()
    (first if nested else second).stop()

    step()  # neither is there any more
    longer = first if nested else None
    recording = obeying(profiler.recording)
    names = [each.name() for each in theirs.profiler.kineto_results.events()]
    expected = {True: 6, False: 2} if longer else {True: 4, False: 4}
    assert counts(recording)["aten::addmm"] == expected[longer is profiler]
    assert names.count("aten::addmm") == expected[longer is theirs]
    assert ("[memory]" in names) == their_memory
    told = recording.allocations().filter(pl.col("lane").is_not_null()).collect()
    notes = dict(recording.completeness().select("source", "note").iter_rows())
    assert (told.height > 0) == (memory and "is active" not in notes.get("profile_memory", ""))
    assert ("profile_memory" in notes) == memory
    also = torch.profiler.profile(profile_memory=True)
    with also:
        step()
    assert "[memory]" in [each.name() for each in also.profiler.kineto_results.events()]


def test_memory_that_another_profiler_has_is_said(tmp_path: Path) -> None:
    step = trained()
    with torch.profiler.profile(profile_memory=True):
        recording = record(step, tmp_path, profile_memory=True)

    notes = dict(recording.completeness().select("source", "note").iter_rows())
    assert "torch's own profiler is active" in notes["profile_memory"]
    assert counts(recording)["aten::addmm"] == 2


def test_profilers_that_overlap_record_what_either_wants(tmp_path: Path) -> None:
    step = trained()
    plain = strobe.Profiler(output=tmp_path)
    full = strobe.Profiler(
        output=tmp_path, record_shapes=True, profile_memory=True, with_modules=True
    )
    plain.start()
    step()
    full.start()
    step()
    plain.stop()
    step()
    full.stop()

    assert counts(obeying(plain.recording))["aten::addmm"] == 4
    spans = obeying(full.recording).spans().collect()
    addmm = spans.filter(pl.col("name") == "aten::addmm")
    assert addmm.height == 4
    assert addmm["attributes"].null_count() == 0
    assert addmm["module"].to_list() == ["Sequential.0", "Sequential.2"] * 2
    assert full.recording.allocations().collect().height > 0


def test_a_profiler_can_be_started_again(tmp_path: Path) -> None:
    step = trained()
    profiler = strobe.Profiler(output=tmp_path)
    for _ in range(3):
        with profiler:
            step()
        assert counts(obeying(profiler.recording))["aten::addmm"] == 2


def test_a_schedule_records_its_rounds(tmp_path: Path) -> None:
    step = trained()
    schedule = strobe.schedule(wait=1, warmup=1, active=2, repeat=2)
    profiler = strobe.Profiler(output=tmp_path, schedule=schedule, record_shapes=True)
    with profiler:
        for _ in range(9):
            step()
            profiler.step()

    assert [counts(obeying(each))["aten::addmm"] for each in profiler.recordings] == [4, 4]
    assert [each.steps().collect()["step"].to_list() for each in profiler.recordings] == [
        [2, 3],
        [6, 7],
    ]


# Errors


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, inputs: Any) -> Any:
        self.inner(inputs)
        raise LookupError("in forward", 1)


def fail(*_: Any) -> Any:
    raise LookupError("in a hook", 2)


def broken_forward() -> None:
    Broken()(torch.ones(2, 8))


def broken_hook() -> None:
    model = network()
    model[1].register_forward_hook(fail)
    model(torch.ones(2, 8))


def broken_pre_hook() -> None:
    model = network()
    model[1].register_forward_pre_hook(fail)
    model(torch.ones(2, 8))


def broken_backward() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight.register_hook(fail)
    weight.exp().sum().backward()


class BrokenOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        fail()


def broken_optimizer() -> None:
    BrokenOptimizer([torch.ones(3, requires_grad=True)], lr=0.1).step()


@pytest.mark.parametrize(
    "work", [broken_forward, broken_hook, broken_pre_hook, broken_backward, broken_optimizer]
)
def test_an_error_of_the_program_reaches_it_unchanged(
    work: Callable[[], None], tmp_path: Path
) -> None:
    alone: list[Any] = []
    told: list[Any] = []
    for into in (alone, told):
        with strobe.Profiler(output=tmp_path, with_modules=True) if into is told else nullcontext():
            try:
                work()
            except LookupError as error:
                into.append((type(error), error.args, error.__cause__, error.__context__))
            network()(torch.ones(2, 8))

    assert told == alone
    assert len(told) == 1


# Layers


class Twice(nn.Module):
    """One layer, used twice, and a model in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(8, 8)
        self.same = self.shared
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def forward(self, inputs: Any) -> Any:
        return self.block(self.same(self.shared(inputs).relu()))


def modules_of(recording: strobe.Recording, name: str) -> list[str | None]:
    return recording.spans().filter(pl.col("name") == name).collect()["module"].to_list()


def test_operators_have_the_path_of_their_layer_forward_and_backward(tmp_path: Path) -> None:
    model, head = Twice(), nn.Linear(8, 2)
    step_of = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)

    def work() -> None:
        head(model(torch.ones(3, 8))).sum().backward()
        step_of.step()
        torch.ones(3)

    recording = record(work, tmp_path, with_modules=True)

    layers = ["Twice.shared", "Twice.shared", "Twice.block.0", "Linear"]
    assert modules_of(recording, "aten::addmm") == layers
    assert modules_of(recording, "AddmmBackward0") == layers[::-1]
    assert modules_of(recording, "aten::relu") == ["Twice"]
    assert modules_of(recording, "aten::tanh") == ["Twice.block.1"]
    assert modules_of(recording, "TanhBackward0") == ["Twice.block.1"]
    assert modules_of(recording, "aten::ones") == [None, None]
    assert modules_of(recording, "Optimizer.step#SGD.step") == [None]
    inside = recording.spans().filter(pl.col("name") == "aten::mm").collect()["module"]
    assert set(inside) <= {*layers}
    assert inside.null_count() == 0


def test_models_of_the_same_class_and_without_gradients(tmp_path: Path) -> None:
    first, second = Twice(), Twice()

    def work() -> None:
        with torch.no_grad():
            first(torch.ones(3, 8))
            second.block(torch.ones(3, 8))
            second(torch.ones(3, 8))

    recording = record(work, tmp_path, with_modules=True)

    whole = ["Twice.shared", "Twice.shared", "Twice.block.0"]
    assert modules_of(recording, "aten::addmm")[:3] == whole
    assert len(modules_of(recording, "aten::addmm")) == 7


def test_layers_after_an_error_in_forward_have_their_own_paths(tmp_path: Path) -> None:
    model = network()

    def work() -> None:
        with pytest.raises(LookupError):
            Broken()(torch.ones(2, 8))
        model(torch.ones(2, 8))

    recording = record(work, tmp_path, with_modules=True)

    layers = ["Broken.inner", "Sequential.0", "Sequential.2"]
    assert modules_of(recording, "aten::addmm") == layers
    assert not recording.spans().collect()["unfinished"].any()


@dataclass
class Scaled(nn.Module):
    """It equals others and so has no hash, and will not tell its layers."""

    factor: float

    def __post_init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def named_modules(self, *_: Any, **__: Any) -> Any:
        raise LookupError

    def forward(self, given: Any) -> Any:
        return self.inner(given) * self.factor


def test_layers_without_a_hash_and_after_an_interrupt_have_their_paths(tmp_path: Path) -> None:
    def work() -> None:
        interrupted = network()
        interrupted[2].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            interrupted(torch.ones(2, 8))
        Scaled(2.0)(torch.ones(2, 8))

    def interrupt(_layer: Any, _inputs: Any) -> None:
        raise KeyboardInterrupt

    recording = record(work, tmp_path, with_modules=True)

    assert modules_of(recording, "aten::addmm") == ["Sequential.0", "Scaled.inner"]


# Nothing stays


def touched() -> dict[str, Any]:
    """What strobe may put something of its own into while it records."""
    from torch.distributed import Work
    from torch.optim import optimizer
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch, worker

    owners = {
        "map": (fetch._MapDatasetFetcher, "fetch"),
        "iterable": (fetch._IterableDatasetFetcher, "fetch"),
        "loop": (worker, "_worker_loop"),
        "next": (dataloader._MultiProcessingDataLoaderIter, "_next_data"),
        "wait": (Work, "wait"),
        "enable": (torch.autograd.profiler, "_enable_profiler"),
        "step": (torch.optim.Optimizer, "step"),
        "zero_grad": (torch.optim.Optimizer, "zero_grad"),
        "forward": (nn.Module, "__call__"),
        "backward": (torch.Tensor, "backward"),
    }
    found = {name: vars(owner)[attribute] for name, (owner, attribute) in owners.items()}
    dicts = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
    dicts += [value for name, value in vars(hooks).items() if name.startswith("_global_")]
    found["hooks"] = [dict(each) for each in dicts if hasattr(each, "keys")]
    found["finders"] = list(sys.meta_path)
    found["flag"] = torch.autograd.profiler._is_profiler_enabled
    return found


def test_nothing_is_left_after_stop(tmp_path: Path) -> None:
    before = touched()
    options = {"record_shapes": "strides", "with_flops": True, "with_modules": True}
    profiler = strobe.Profiler(output=tmp_path, profile_memory=True, data_process=True, **options)
    with profiler:
        during = touched()
        trained()()

    after = touched()
    changed = {name for name, value in before.items() if during[name] is not value}
    assert changed >= {"map", "iterable", "loop", "next", "wait", "enable"}
    assert during["hooks"] != before["hooks"]
    for name in set(before) - {"hooks", "finders"}:
        assert after[name] is before[name], name
    assert after["hooks"] == before["hooks"]
    assert all(a is b for a, b in zip(after["finders"], before["finders"], strict=True))
    assert not torch._C._autograd._profiler_enabled()


def test_without_torch_nothing_of_it_is_imported(tmp_path: Path) -> None:
    program = Program("c", tmp_path)
    program.run("""
        before = list(sys.meta_path)
        profiler = strobe.Profiler(output=OUT, record_shapes=True, profile_memory=True)
        profiler.start()
        profiler.stop()
        assert "torch" not in sys.modules
        assert not [name for name in sys.modules if name.startswith("strobe.sources.torch")]
        assert sys.meta_path == before
    """)
    assert "record_shapes is not collected: no imported framework tells it" in program.said


def test_torch_may_be_imported_while_recording(tmp_path: Path) -> None:
    program = Program("c", tmp_path)
    program.run("""
        with strobe.Profiler(output=OUT, record_shapes=True):
            import torch
            torch.ones(2, 3).exp()
        loader = torch.__spec__.loader
        assert "exec_module" not in vars(loader), vars(loader)
    """)

    spans = program.spans()
    attributes = spans.filter(pl.col("name") == "aten::exp")["attributes"].to_list()
    assert [json.loads(text)["shapes"] for text in attributes] == [[[2, 3]]]


def test_a_forked_child_records_on_its_own(tmp_path: Path) -> None:
    program = Program("c", tmp_path)
    program.run(
        """
        import torch
        with strobe.Profiler(output=OUT, record_shapes=True, profile_memory=True):
            torch.ones(2, 3).exp()
            child = os.fork()
            torch.ones(2, 3).sin()
            if child == 0:
                torch.ones(2, 3).cos()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        print(os.getpid())
        """,
        env={"OMP_NUM_THREADS": "1"},
    )

    spans = program.spans().with_columns(here=pl.col("pid") == int(program.printed))
    shown = spans.filter(pl.col("name").is_in(["aten::exp", "aten::sin", "aten::cos"]))
    assert sorted(shown.select("name", "here").iter_rows()) == [
        ("aten::cos", False),
        ("aten::exp", True),
        ("aten::sin", False),
        ("aten::sin", True),
    ]


# Phases


def phases_of(recording: strobe.Recording, name: str) -> list[str | None]:
    return recording.spans().filter(pl.col("name") == name).collect()["phase"].to_list()


def check_sums(recording: strobe.Recording, steps: pl.DataFrame) -> pl.DataFrame:
    """A step's phases must sum to the step; their table."""
    times = phase_times(recording.spans().collect(), steps)
    ended = steps.filter(~pl.col("unfinished"))
    sums = dict(times.group_by("step").agg(pl.sum("total_ns")).iter_rows())
    assert sums == dict(ended.select("step", "dur_ns").iter_rows())
    return times


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.ones(12, 8), batch_size=4)


def test_phases_of_a_loop_with_accumulated_gradients(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    profiler = strobe.Profiler(output=tmp_path)
    with profiler:
        for _ in range(2):
            for batch in loader():
                model(batch).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    recording = obeying(profiler.recording)

    assert phases_of(recording, "aten::addmm") == ["forward"] * 12
    assert set(phases_of(recording, "aten::mm")) == {"backward"}
    assert set(phases_of(recording, "aten::linalg_vector_norm")) == {"other"}
    assert set(phases_of(recording, "Optimizer.step#AdamW.step")) == {"optimizer"}
    assert set(phases_of(recording, "Optimizer.zero_grad#AdamW.zero_grad")) == {"zero_grad"}
    waits = recording.spans().filter(pl.col("name").str.starts_with("enumerate(")).collect()
    assert set(waits["phase"]) == {"data_loading"}
    times = check_sums(recording, recording.steps().collect())
    assert times.filter(pl.col("total_ns") > 0)["phase"].n_unique() == 6
    derived = steps_of(recording.spans().collect())
    assert derived.height == 2
    check_sums(recording, derived)


def test_phases_of_two_models_with_two_optimizers(tmp_path: Path) -> None:
    maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (maker, judge)]

    def work() -> None:
        for _ in range(3):
            made = maker(torch.randn(5, 4))
            optimizers[1].zero_grad()
            (judge(made.detach()).mean() - judge(torch.ones(5, 8)).mean()).backward()
            optimizers[1].step()
            optimizers[0].zero_grad()
            judge(made).mean().backward()
            optimizers[0].step()

    recording = record(work, tmp_path)

    assert phases_of(recording, "aten::addmm") == ["forward"] * 12
    assert set(phases_of(recording, "AddmmBackward0")) == {"backward"}
    derived = steps_of(recording.spans().collect())
    check_sums(recording, derived)


def test_inference_is_forward(tmp_path: Path) -> None:
    model = network().eval()
    profiler = strobe.Profiler(output=tmp_path)
    with profiler, torch.inference_mode():
        for batch in loader():
            model(batch).argmax(-1)
            profiler.step()
    recording = obeying(profiler.recording)

    assert phases_of(recording, "aten::addmm") == ["forward"] * 6
    assert phases_of(recording, "aten::argmax") == ["forward"] * 3
    check_sums(recording, recording.steps().collect())
