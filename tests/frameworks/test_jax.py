# SPDX-License-Identifier: Apache-2.0
"""JAX is recorded as its own profiler tells it, and no program is worse off for it."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from flat_trace import read_flat
from programs import TIMEOUT_SECONDS, Program
from strobe.importers import xspace

pytestmark = pytest.mark.jax

jax = pytest.importorskip("jax", reason="JAX is not installed")

TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
NO_WARNINGS = {"warnings": "default"}  # those of JAX are its own

# Two models. Small ones run in the thread that calls them; these are large enough for XLA's own.
TRAINING = """
    import jax, jax.numpy as jnp

    @jax.jit
    def update(weights, inputs):
        def loss(weights):
            return jnp.mean(jnp.tanh(jnp.tanh(inputs @ weights[0]) @ weights[1]) ** 2)
        value, gradients = jax.value_and_grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, gradients)], value

    weights = [jnp.ones((96, 64)) / 96, jnp.ones((64, 32)) / 64]
    inputs = jnp.ones((48, 96))

    def step():
        global weights
        weights, value = update(weights, inputs)
        value.block_until_ready()
"""
INFERENCE = """
    import jax, jax.numpy as jnp

    @jax.jit
    def predict(kernel, images):
        dimensions = ("NHWC", "HWIO", "NHWC")
        found = jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=dimensions
        )
        return jax.nn.softmax(jnp.max(found, axis=(1, 2)))

    kernel, images = jnp.ones((3, 3, 3, 8)) / 27, jnp.ones((4, 16, 16, 3))

    def step():
        predict(kernel, images).block_until_ready()
"""
# What JAX's own profiler says of the same steps.
COMPARED = """
    def steps():
        for number in range(4):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                step()

    import glob, json, shutil
    from strobe.sources.jax import source

    def keep(trace, **facts):
        shutil.copy(trace, OUT + "-kept")
        announce(trace, **facts)

    announce, source.announce_trace = source.announce_trace, keep

    def told(path):
        found = []
        for plane in jax.profiler.ProfileData.from_file(path).planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats or "step_num" in stats:
                        dur_ns = int(event.start_ns + event.duration_ns) - int(event.start_ns)
                        found.append([event.name, stats.get("hlo_module"), event.start_ns, dur_ns])
        return found

    steps()
    with strobe.Profiler(output=OUT):
        steps()
    with jax.profiler.trace(OUT + "-theirs"):
        steps()
    (path,) = glob.glob(OUT + "-theirs/plugins/profile/*/*.xplane.pb")
    print(json.dumps([told(path), told(OUT + "-kept")]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    program = Program("c", tmp_path)
    yield program
    program.end()


def attributes(spans: pl.DataFrame) -> list[dict[str, Any]]:
    return [json.loads(text) if text else {} for text in spans["attributes"]]


def of(spans: pl.DataFrame, *categories: str) -> pl.DataFrame:
    return spans.filter(pl.col("category").cast(pl.String).is_in(categories))


@pytest.mark.parametrize("model", [TRAINING, INFERENCE], ids=["training", "inference"])
def test_the_same_operators_as_of_jax_itself(program: Program, model: str) -> None:
    theirs, same_run = json.loads(program.run(model + COMPARED, **NO_WARNINGS))

    spans = program.spans()
    operators = of(spans, "operator")
    names = zip(operators["name"], attributes(operators), strict=True)
    ours = Counter((name, told["hlo_module"]) for name, told in names)
    assert ours == Counter((name, module) for name, module, _, _ in theirs if module)
    assert sum(ours.values()) >= 4 * 2
    annotated = of(spans, "annotation")
    assert annotated["name"].to_list() == ["train"] * 4 == [n for n, m, _, _ in theirs if not m]
    # Times as JAX reads them in the bytes of the same run: the two clocks run alike but for a
    # thousandth, and were laid beside each other at both ends, as well as the recording says.
    rows = of(spans, "operator", "annotation").sort("start_ns", "name")
    told = sorted(same_run, key=lambda event: (event[2], event[0]))
    assert rows.height == len(told)
    residuals = dict(
        program.open().completeness().select("source", "clock_residual_ns").iter_rows()
    )
    whole_ns = told[-1][2] - told[0][2]
    wrong = 1 / 1000 + 2 * residuals["jax"] / whole_ns
    for name in set(rows["name"]):
        mine = rows.filter(pl.col("name") == name)
        ours_ns = mine["start_ns"].to_list()
        begins, durations = zip(
            *((begin, dur) for n, _, begin, dur in told if n == name), strict=True
        )
        apart = [ours - begin for ours, begin in zip(ours_ns, sorted(begins), strict=True)]
        assert max(apart) - min(apart) <= 1000 + whole_ns * wrong, name
        total = sum(durations)
        assert abs(mine["dur_ns"].sum() - total) <= 2 * len(begins) + total * wrong, name


def test_the_file_says_what_jax_reads_in_it(tmp_path: Path) -> None:
    profiler = pytest.importorskip("jaxlib._profiler", reason="no profiler in this jaxlib")
    step = jax.jit(lambda x: jax.numpy.sin(x @ x) + 1)
    options = profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.enable_hlo_proto = False
    session = profiler.ProfilerSession(options)
    for number in range(3):
        with jax.profiler.TraceAnnotation("mine", number=number, text="a b"):
            step(jax.numpy.ones((80, 80))).block_until_ready()
    data = session.stop()
    (tmp_path / "trace").write_bytes(data)

    events = read_flat(xspace, tmp_path / "trace")

    told = Counter()
    for plane in jax.profiler.ProfileData.from_serialized_xspace(data).planes:
        for line in plane.lines if plane.name == "/host:CPU" else []:
            for event in line.events:
                if event.name.startswith(("end: ", "ThreadpoolListener::")):
                    continue
                stats = {key: value for key, value in event.stats if not key.startswith("_")}
                if stats.get("hlo_op") == event.name:
                    del stats["hlo_op"]
                end_ns = int(event.start_ns + event.duration_ns)
                text = json.dumps(stats, sort_keys=True)
                told[event.name, int(event.start_ns), end_ns, text] += 1
    texts = [json.dumps(json.loads(text), sort_keys=True) for text in [*events.texts, "{}"]]
    columns = (events.name, events.start_ns, events.dur_ns, events.attributes)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    ours = Counter(
        (events.names[name], start_ns, start_ns + dur_ns, texts[text])
        for name, start_ns, dur_ns, text in rows
    )
    assert ours == told
    assert sum(ours.values()) > 100


def test_a_program_over_two_devices(program: Program) -> None:
    source = """
        import threading
        profiler = strobe.Profiler(output=OUT, profile_memory=True)
        profiler.start()
        import jax, jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        mesh = Mesh(jax.devices(), ("d",))
        rows = NamedSharding(mesh, PartitionSpec("d"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        total = jax.jit(lambda a: jnp.sum(a @ a.T, axis=0), out_shardings=everywhere)
        values = jax.device_put(jnp.ones((8, 64)), rows)
        for number in range(3):
            with jax.profiler.StepTraceAnnotation("train", step_num=10 + number):
                with strobe.span("mine"):
                    total(values).block_until_ready()
        (values[0] * 2).block_until_ready()  # eager
        with jax.profiler.TraceAnnotation("user's", layer=3):
            pass
        started, done = threading.Event(), threading.Event()
        def work():
            with jax.profiler.TraceAnnotation("in a thread"):
                started.set()
            done.wait()
        thread = threading.Thread(target=work, name="helper")
        thread.start()
        started.wait()
        print(threading.get_native_id(), thread.native_id)
        profiler.stop()
        done.set()
    """
    main, helper = map(int, program.run(source, env=TWO_DEVICES, **NO_WARNINGS).split())

    recording = program.open()
    spans = recording.spans().collect()
    exchanged = of(spans, "communication")
    assert set(exchanged["name"].str.replace(r"[.\d]+$", "")) <= {"all-reduce", "all-gather"}
    assert len({told["device_ordinal"] for told in attributes(exchanged)}) == 2
    collectives = recording.collectives().collect()
    assert collectives.height == exchanged.height > 0
    assert set(collectives["backend"]) == {"xla"}
    assert set(collectives["ranks"]) == {"[0, 1]"}
    assert collectives["wait_ns"].to_list() == collectives["dur_ns"].to_list()
    assert set(collectives["dtype"]) == {"float32"}
    waited = [told["rendezvous_wait_ns"] for told in attributes(exchanged)]
    assert all(0 <= ns <= dur_ns for ns, dur_ns in zip(waited, exchanged["dur_ns"], strict=True))
    assert {told["group_size"] for told in attributes(exchanged)} == {2}
    ordinals = {told["device_ordinal"] for told in attributes(of(spans, "operator"))}
    assert ordinals == {0, 1}
    assert all(
        {"hlo_module", "program_id", "run_id"} <= told.keys()
        for told in attributes(of(spans, "operator", "communication"))
    )
    steps = recording.steps().collect()
    assert steps["step"].to_list() == [10, 11, 12]
    assert set(steps["kind"]) == {"annotation"}
    marked = of(spans, "annotation").filter(pl.col("name") != "train").sort("start_ns")
    assert marked["name"].to_list() == ["user's", "in a thread"]
    assert attributes(marked) == [{"layer": 3}, {}]
    assert marked["tid"].to_list() == [main, helper]
    names = dict(recording.threads().collect().select("tid", "thread").rows())
    assert names[helper] == "helper"
    assert "tf_XLAPjRtCpuClient" in names.values()
    # The user's spans lie where the annotations around them do: one clock for both.
    mine = spans.filter(pl.col("name") == "mine")
    assert set(spans[mine["parent"]]["name"]) == {"train"}
    compiled = of(spans, "compile")
    assert "backend_compile_and_load" in set(compiled["name"])
    assert set(of(spans, "operator", "compile")["phase"]) == {None}
    notes = dict(recording.completeness().select("source", "note").rows())
    assert "only the host was watched" in notes["jax"]
    assert "no memory statistics" in notes["profile_memory"]


def test_the_programs_own_profiler_has_precedence(program: Program) -> None:
    source = """
        import jax, jax.numpy as jnp
        from jaxlib import _profiler
        plain = _profiler.ProfilerSession
        leave = vars(jax.profiler.StepTraceAnnotation).get("__exit__")
        double = jax.jit(lambda x: x * 2)
        def annotate(name):
            with jax.profiler.TraceAnnotation(name):
                double(jnp.ones(4)).block_until_ready()
        def theirs(name):
            import glob
            (path,) = glob.glob(f"{OUT}-{name}/plugins/profile/*/*.xplane.pb")
            planes = jax.profiler.ProfileData.from_file(path).planes
            lines = [line for plane in planes for line in plane.lines]
            return {event.name for line in lines for event in line.events}

        with strobe.Profiler(output=OUT + "/interrupted"):
            annotate("before")
            with jax.profiler.trace(OUT + "-during"):
                annotate("during")
            annotate("after")
        assert "during" in theirs("during")

        jax.profiler.start_trace(OUT + "-around")
        with strobe.Profiler(output=OUT + "/refused"):
            annotate("around")
        jax.profiler.stop_trace()
        assert "around" in theirs("around")

        with strobe.Profiler(output=OUT + "/again"):
            annotate("again")
        assert _profiler.ProfilerSession is plain
        assert vars(jax.profiler.StepTraceAnnotation).get("__exit__") is leave
    """
    program.run(source, **NO_WARNINGS)

    def annotations(name: str) -> list[str]:
        return of(program.spans(program.output / name), "annotation")["name"].to_list()

    assert "the program started jax.profiler" in program.said
    assert "jax is not recorded (jax.profiler is already active" in program.said
    assert annotations("interrupted") == ["before"]
    assert annotations("refused") == []
    assert annotations("again") == ["again"]


def test_shapes_are_those_of_the_compiled_program(program: Program) -> None:
    source = """
        import jax, jax.numpy as jnp
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        rows = NamedSharding(Mesh(jax.devices(), ("d",)), PartitionSpec("d"))
        @jax.jit
        def multiply(a, b):
            return a @ b
        a, b = jnp.ones((30, 20)), jnp.ones((20, 10))
        @jax.jit
        def add(a):
            return jnp.sum(a, axis=0)
        parts = jax.device_put(jnp.ones((8, 64), jnp.bfloat16), rows)
        multiply(a, b), add(parts).block_until_ready()
        with strobe.Profiler(output=OUT, record_shapes=True):
            multiply(a, b).block_until_ready()
            add(parts).block_until_ready()
    """
    program.run(source, env=TWO_DEVICES, **NO_WARNINGS)

    recording = program.open()
    told = attributes(of(recording.spans().collect(), "operator"))
    (product,) = [each for each in told if each["hlo_module"] == "jit_multiply"]
    assert product["shapes"] == [[30, 20], [20, 10]]
    assert product["dtypes"] == ["float32", "float32"]
    assert product["op_name"] == "jit(multiply)/dot_general"
    # 64 sums on each of two devices; XLA chooses the type in which they are exchanged.
    exchanged = recording.collectives().collect()
    width = {"bfloat16": 2, "float32": 4}
    assert exchanged["bytes"].to_list() == [64 * width[each] for each in exchanged["dtype"]]
    assert exchanged.height == 2
    assert "record_shapes" not in program.said


def test_phases_and_groups_of_a_compiled_step(program: Program) -> None:
    source = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
        inputs = jax.device_put(jnp.ones((8, 64)), NamedSharding(mesh, P("data", "model")))
        weights = jax.device_put(jnp.ones((64, 32)), NamedSharding(mesh, P("model", None)))

        @jax.jit
        def update(weights, inputs):
            loss = lambda weights: jnp.mean(jnp.tanh(inputs @ weights) ** 2)
            return weights - 0.1 * jax.grad(loss)(weights)

        update(weights, inputs).block_until_ready()
        with strobe.Profiler(output=OUT):
            update(weights, inputs).block_until_ready()
    """
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    program.run(source, env=env, **NO_WARNINGS)

    recording = program.open()
    spans = recording.spans().collect()
    exchanged = of(spans, "communication")
    # What is multiplied is spread over `model`, 0 and 1, 2 and 3; gradients are summed over `data`.
    told = {
        (row["phase"], json.dumps(json.loads(row["attributes"])["replica_groups"]))
        for row in exchanged.iter_rows(named=True)
    }
    assert told == {("forward", "[[0, 1], [2, 3]]"), ("backward", "[[0, 2], [1, 3]]")}
    assert set(recording.collectives().collect()["ranks"]) == {None}  # whose is whose is not told
    operators = of(spans, "operator")
    assert set(operators["phase"]) == {"forward", "backward", None}
    # The update is neither, alone or with the gradient that it was fused with.
    last = operators.sort("start_ns").filter(pl.col("tid") == operators["tid"][0])["phase"][-1]
    assert last is None
    assert "shapes" not in attributes(operators)[0]


def test_a_window_has_what_was_asked_for_in_it(program: Program) -> None:
    """JAX comes back before its operators have run, and nobody waits for them here."""
    program.run(
        """
        import jax, jax.numpy as jnp
        square = jax.jit(lambda matrix: jnp.dot(matrix, matrix))
        matrix = jnp.ones((1000, 1000))
        square(matrix).block_until_ready()
        deleted = square(matrix)
        for number in range(2):
            with strobe.Profiler(output=OUT, name=str(number)):
                found = [square(matrix) for _ in range(3)]
                deleted.delete()
        found.clear()
        with strobe.Profiler(output=OUT + "/kept by nobody"):
            for _ in range(20):
                square(matrix)
        """,
        **NO_WARNINGS,
    )

    for path in program.recordings():
        assert count_operators(path) == 3  # XLA makes one of it, by whatever name
    kept_by_nobody = program.output / "kept by nobody"
    told = str(strobe.open(kept_by_nobody).completeness()["note"].to_list())
    assert count_operators(kept_by_nobody) == 20 or "of 20 programs" in told, told


def count_operators(path: Path) -> int:
    return strobe.open(path).spans().filter(pl.col("category") == "operator").collect().height


def test_callbacks_use_the_profiler_while_its_end_waits_for_them(program: Program) -> None:
    program.run(
        """
        import sys, threading, traceback
        import jax, jax.numpy as jnp, numpy

        square = jax.jit(lambda matrix: jnp.dot(matrix, matrix))
        matrix = jnp.ones((1000, 1000))
        square(matrix).block_until_ready()
        main = threading.get_ident()

        def call_back(profiler, action):
            function = lambda array: (action(), numpy.asarray(array))[1]
            call = jax.jit(lambda array: jax.pure_callback(function, array, array))
            call = call.lower(matrix).compile()
            profiler.start()
            array = matrix
            for _ in range(10):  # else it is there already, and XLA calls back in our thread
                array = square(array)
            return call(array)

        def is_waiting():
            stack = traceback.extract_stack(sys._current_frames()[main])
            return any(frame.name == "settle" for frame in stack)

        def step():
            while threading.get_ident() != main and not is_waiting():
                pass
            waited.step()

        waited = strobe.Profiler(output=OUT + "/waited")
        array = call_back(waited, step)
        waited.stop()
        stopped = strobe.Profiler(output=OUT + "/stopped")
        call_back(stopped, stopped.stop).block_until_ready()
        """,
        **NO_WARNINGS,
    )

    waited, stopped = (strobe.open(program.output / name) for name in ("waited", "stopped"))
    assert waited.steps().collect()["unfinished"].to_list() == [False, True]
    unknown = "what JAX still ran at the end is not known"
    assert [unknown in str(one.completeness()["note"].to_list()) for one in (waited, stopped)] == [
        False,
        True,
    ]


def test_profilers_may_overlap(program: Program) -> None:
    source = """
        import jax
        def mark(name):
            with jax.profiler.TraceAnnotation(name):
                jax.numpy.ones(3).block_until_ready()
        first = strobe.Profiler(output=OUT + "/first")
        second = strobe.Profiler(output=OUT + "/second")
        first.start()
        mark("1")
        second.start()
        mark("2")
        first.stop()
        mark("3")
        second.stop()
    """
    program.run(source, **NO_WARNINGS)

    found = {
        name: of(program.spans(program.output / name), "annotation")["name"].to_list()
        for name in ("first", "second")
    }
    assert found == {"first": ["1", "2"], "second": ["2", "3"]}


def test_memory_statistics_are_kept_where_a_device_has_some(program: Program) -> None:
    source = """
        import jax
        class Device:  # no accelerator is here: one that says what theirs do
            platform, id = "gpu", 3
            def memory_stats(self):
                return {"bytes_in_use": 5, "peak_bytes_in_use": 9}
        class Other(Device):
            platform = "other"
            def memory_stats(self):
                raise NotImplementedError
        jax.devices()
        plain = jax.local_devices
        with strobe.Profiler(output=OUT, profile_memory=True):
            jax.local_devices = lambda: [*plain(), Device(), Other()]
    """
    program.run(source, **NO_WARNINGS)

    metadata = dict(program.open().metadata().collect().rows())
    assert json.loads(metadata["jax_memory"]) == {
        "gpu:3": {"bytes_in_use": 5, "peak_bytes_in_use": 9}
    }
    assert json.loads(metadata["jax_devices"]) == ["cpu:0", "gpu:3", "other:3"]
    assert "profile_memory" not in program.said


def test_a_window_is_bounded_and_a_fork_is_survived(program: Program) -> None:
    source = """
        import jax
        profiler = strobe.Profiler(output=OUT)
        profiler.start()
        with jax.profiler.TraceAnnotation("early"):
            pass
        child = os.fork()
        if child == 0:
            with jax.profiler.TraceAnnotation("in the child"):
                sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        from jaxlib import _profiler
        while _profiler.ProfilerSession.__module__ == "strobe.sources.jax.session":
            time.sleep(0.05)
        with jax.profiler.TraceAnnotation("late"):
            pass
        profiler.stop()
    """
    program.run(source, env={"STROBE_JAX_SECONDS": "6"}, warnings="ignore")

    recording = strobe.open(program.recordings()[0])
    spans = recording.spans().collect()
    assert of(spans, "annotation")["name"].to_list() == ["early"]
    notes = dict(recording.completeness().select("source", "note").rows())
    assert "not recorded to the end: it records 6 s at most" in notes["jax"]


def test_steps_are_counted_without_a_change(program: Program) -> None:
    script = program.folder / "train.py"
    script.write_text(
        "import jax\n"
        "for number in range(6):\n"
        "    with jax.profiler.StepTraceAnnotation('train', step_num=number):\n"
        "        jax.numpy.ones(3).block_until_ready()\n"
    )
    runner = program.write(
        "import subprocess\n"
        "command = [sys.executable, '-m', 'strobe', 'run', '--output', OUT, '--steps', '2:4']\n"
        "sys.exit(subprocess.call([*command, sys.argv[2]]))\n"
    )
    program.run(runner, script, **NO_WARNINGS)

    recording = program.open()
    steps = recording.steps().filter(~pl.col("unfinished")).collect()
    assert steps["step"].to_list() == [2, 3]
    numbers = [told["step_num"] for told in attributes(of(program.spans(), "annotation"))]
    assert numbers == [2, 3]


def test_processes_have_the_ranks_that_jax_was_told(program: Program) -> None:
    script = program.write("""
        import jax
        number, address = int(sys.argv[2]), sys.argv[3]
        jax.distributed.initialize(address, num_processes=2, process_id=number)
        with strobe.Profiler(output=OUT), strobe.span(f"work of {number}"):
            jax.block_until_ready(jax.numpy.ones(4) + number)
    """)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    processes = [program.start(script, number, address, **NO_WARNINGS) for number in range(2)]
    for process in processes:
        _, said = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == 0, said

    (job,) = program.output.iterdir()
    recordings = sorted(job.iterdir())
    assert [path.name[:9] for path in recordings] == ["rank00000", "rank00001"]
    for number, path in enumerate(recordings):
        assert f"work of {number}" in strobe.open(path).spans().collect()["name"].to_list()


def test_wrong_seconds_are_told_and_the_program_runs(program: Program) -> None:
    program.run(
        "import jax\nwith strobe.Profiler(output=OUT):\n    jax.numpy.ones(1)\nprint('done')",
        env={"STROBE_JAX_SECONDS": "soon"},
        **NO_WARNINGS,
    )

    assert program.printed == "done\n"
    assert "STROBE_JAX_SECONDS='soon': must be a number of seconds" in program.said


def test_each_source_of_a_program_counts_its_own_rows(program: Program) -> None:
    program.run(
        TRAINING
        + """
        step()
        with strobe.Profiler(output=OUT, with_stack=True) as profiler:
            for number in range(3):
                with strobe.span("train", number=number):
                    step()
                profiler.step()
        """.replace("\n    ", "\n"),
        **NO_WARNINGS,
    )

    recording = program.open()
    found = {row["source"]: row for row in recording.completeness().to_dicts()}
    kinds = dict(recording.spans().collect()["category"].cast(pl.String).value_counts().rows())
    of_jax = sum(count for kind, count in kinds.items() if kind not in ("user", "python"))
    assert found["spans"]["collected"] == 3 + 3  # spans and steps
    assert found["python_calls"]["collected"] == kinds["python"]
    counters = recording.counters().collect()["name"].str.starts_with("process ")
    assert found["jax"]["collected"] == of_jax + (~counters).sum() > 0
    assert found["host"]["collected"] == counters.sum() > 0
    assert found["jax"]["once_ns"] > 0
    assert found["jax"]["own_ns"] > 0
    assert "own time is estimated" in found["jax"]["note"]
