# SPDX-License-Identifier: Apache-2.0
"""What the ways to write a span record: block, decorator, begin() and end(), in any nesting."""

from __future__ import annotations

import json

import polars as pl

from programs import Program, count, finished


def drawn(spans: pl.DataFrame) -> list[str]:
    """The spans by start, indented by their depth, with a question mark where unfinished."""
    depth: list[int] = []
    lines = []
    for name, parent, unfinished in spans.select("name", "parent", "unfinished").iter_rows():
        depth.append(0 if parent is None else depth[parent] + 1)
        lines.append("  " * depth[-1] + name + ("?" if unfinished else ""))
    return lines


def test_blocks_nest(program: Program) -> None:
    spans = program.record("""
        with strobe.span("step"):
            with strobe.span("forward"):
                with strobe.span("mm"): pass
            with strobe.span("backward"): pass
        with strobe.span("step"): pass
    """)

    assert drawn(spans) == ["step", "  forward", "    mm", "  backward", "step"]


def test_duration_is_that_of_the_block(program: Program) -> None:
    program.run("""
        with strobe.Profiler(output=OUT):
            before = time.monotonic_ns()
            with strobe.span("sleep"):
                inside = time.monotonic_ns()
                time.sleep(0.02)
                end = time.monotonic_ns()
            after = time.monotonic_ns()
        print(before, inside, end, after)
    """)
    before, inside, end, after = map(int, program.printed.split())
    row = program.spans().row(0, named=True)

    assert before <= row["start_ns"] <= inside
    assert end <= row["start_ns"] + row["dur_ns"] <= after


def test_decorators_record_each_call(program: Program) -> None:
    spans = program.record("""
        import asyncio, functools

        class Model:
            @strobe.span("method")
            def method(self, x): return self, x

            @staticmethod
            @strobe.span("static inside")
            def inside(x): return x

            @strobe.span("static outside")
            @staticmethod
            def outside(x): return x

            @strobe.span("class method")
            @classmethod
            def klass(cls, x): return cls, x

        @strobe.span("function", device="cpu")
        def function(a, *, b=2):
            "What it says."
            return a + b

        @strobe.span("coroutine")
        async def coroutine(x):
            await asyncio.sleep(0)
            return x

        @strobe.span("generator")
        def generator(n):
            got = []
            for i in range(n): got.append((yield i))
            return got

        @strobe.span("async generator")
        async def items(n):
            for i in range(n):
                await asyncio.sleep(0)
                yield i

        model = Model()
        assert model.method(1) == (model, 1)
        assert model.inside(2) == model.outside(2) == Model.outside(2) == 2
        assert Model.klass(3) == (Model, 3)
        assert function(1, b=5) == 6 and function(1) == 3
        assert function.__name__ == "function" and function.__doc__ == "What it says."
        assert asyncio.iscoroutinefunction(coroutine)
        assert asyncio.run(coroutine(4)) == 4
        assert list(generator(3)) == [0, 1, 2]
        async def collect(): return [i async for i in items(3)]
        assert asyncio.run(collect()) == [0, 1, 2]
        strobe.span("partial")(functools.partial(function, 1))()
    """)

    assert count(finished(spans)) == {
        "method": 1,
        "static inside": 1,
        "static outside": 2,
        "class method": 1,
        "function": 3,
        "coroutine": 1,
        "generator": 1,
        "async generator": 1,
        "partial": 1,
    }
    assert set(spans.filter(pl.col("name") == "function")["attributes"]) == {'{"device":"cpu"}'}


def test_a_decorated_generator_still_takes_what_is_sent_and_thrown(program: Program) -> None:
    spans = program.record("""
        @strobe.span("echo")
        def echo():
            got = []
            try:
                while True:
                    try: got.append((yield len(got)))
                    except KeyError as error: got.append(repr(error))
            finally:
                print(got)

        it = echo()
        assert next(it) == 0 and it.send("a") == 1 and it.throw(KeyError("b")) == 2
        it.close()
    """)

    assert program.printed.strip() == """['a', "KeyError('b')"]"""
    assert count(finished(spans)) == {"echo": 1}


def test_a_decorated_async_generator_still_takes_what_is_sent_and_thrown(program: Program) -> None:
    spans = program.record("""
        import asyncio

        @strobe.span("echo")
        async def echo():
            got = []
            try:
                while True:
                    try: got.append((yield len(got)))
                    except KeyError as error: got.append(repr(error))
            finally:
                await asyncio.sleep(0)
                print(got)

        async def main():
            it = echo()
            assert await it.__anext__() == 0
            assert await it.asend("a") == 1
            assert await it.athrow(KeyError("b")) == 2
            await it.aclose()
            print("closed")
        asyncio.run(main())
    """)

    assert program.printed.splitlines() == ["""['a', "KeyError('b')"]""", "closed"]
    assert count(finished(spans)) == {"echo": 1}


def test_a_decorator_passes_exceptions_and_ends_its_span(program: Program) -> None:
    spans = program.record("""
        @strobe.span("fails")
        def fails(): raise KeyError("mine")

        try: fails()
        except KeyError as error: assert error.args == ("mine",)
        else: raise SystemExit(1)
    """)

    assert count(finished(spans)) == {"fails": 1}


def test_a_decorated_mock_is_called_once(program: Program) -> None:
    spans = program.record("""
        from unittest.mock import Mock

        callee = Mock(return_value=5, __name__="callee", __doc__="", __qualname__="callee")
        assert strobe.span("mock")(callee)(1, b=2) == 5
        callee.assert_called_once_with(1, b=2)
    """)

    assert count(finished(spans)) == {"mock": 1}


def test_begin_and_end_may_overlap(program: Program) -> None:
    spans = program.record("""
        a = strobe.span("a").begin()
        b = strobe.span("b").begin()
        a.end()
        c = strobe.span("c").begin()
        b.end()
        c.end()
    """)

    # a----      b is not inside a, nor c inside b: neither contains the other
    #   b-----
    #       c----
    assert drawn(spans) == ["a", "b", "c"]
    ends = dict(spans.select("name", pl.col("start_ns") + pl.col("dur_ns")).iter_rows())
    assert ends["a"] < ends["b"] < ends["c"]


def test_end_without_begin_is_nothing(program: Program) -> None:
    spans = program.record("""
        span = strobe.span("once")
        assert span.end() is None
        span.begin(); span.end(); span.end()
    """)

    assert drawn(spans) == ["once"]


def test_a_span_in_an_exit_stack_ends_with_the_stack(program: Program) -> None:
    spans = program.record("""
        import contextlib

        with contextlib.ExitStack() as stack:
            assert stack.enter_context(strobe.span("first")).name == "first"
            stack.enter_context(strobe.span("second"))
            with strobe.span("inside"): pass
        with strobe.span("after"): pass
    """)

    assert drawn(spans) == ["first", "  second", "    inside", "after"]


def test_an_exception_passes_through_a_span_and_ends_it(program: Program) -> None:
    spans = program.record("""
        try:
            with strobe.span("outer"):
                with strobe.span("inner"):
                    raise ValueError("mine")
        except ValueError as error:
            assert error.args == ("mine",)
    """)

    assert drawn(spans) == ["outer", "  inner"]


def test_recursion_opens_one_object_many_times(program: Program) -> None:
    # 300 is more than the open table of a ring holds (256).
    spans = program.record("""
        span = strobe.span("deep")
        def dive(depth):
            with span:
                if depth: dive(depth - 1)
        dive(299)
    """)

    assert drawn(spans) == ["  " * depth + "deep" for depth in range(300)]


def test_a_span_that_never_ends_is_kept_and_marked(program: Program) -> None:
    spans = program.record("""
        kept = strobe.span("kept").begin()
        strobe.span("dropped").begin()
        with strobe.span("done"): pass
    """)

    assert drawn(spans) == ["kept?", "  dropped?", "    done"]
    assert program.completeness()["unfinished"] == 2


def test_1000_spans_that_never_end_are_all_kept(program: Program) -> None:
    # The open table of a ring holds 256 of them; the others are kept elsewhere.
    spans = program.record("""
        kept = [strobe.span(f"kept {i}").begin() for i in range(500)]
        for i in range(500): strobe.span(f"dropped {i}").begin()
        for span in kept[100:200]: span.end()
    """)

    assert sorted(spans["name"]) == sorted(
        f"{k} {i}" for k in ("kept", "dropped") for i in range(500)
    )
    ended = {f"kept {i}" for i in range(100, 200)}
    assert set(finished(spans)["name"]) == ended


def test_a_span_object_made_while_off_records_once_on(program: Program) -> None:
    program.run("""
        span = strobe.span("early", step=1)
        @strobe.span("decorated")
        def function(): pass

        with span: function()
        with strobe.Profiler(output=OUT):
            with span: function()
        with span: function()
    """)

    assert drawn(program.spans()) == ["early", "  decorated"]


def test_a_span_open_across_start_or_stop_belongs_where_it_began(program: Program) -> None:
    program.run("""
        profiler = strobe.Profiler(output=OUT)
        early, late, inside = strobe.span("early"), strobe.span("late"), strobe.span("inside")
        early.begin()
        with profiler:
            early.end()
            late.begin()
            with inside: pass
        late.end()
    """)

    assert drawn(program.spans()) == ["late?", "  inside"]


def test_one_object_on_several_threads_is_several_spans(program: Program) -> None:
    spans = program.record("""
        import threading

        span, barrier = strobe.span("shared"), threading.Barrier(4)
        def work(k):
            for i in range(50):
                with strobe.span(f"thread {k}"):
                    with span:
                        barrier.wait()      # all four are inside at once
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
    """)

    assert count(finished(spans)) == {"shared": 200} | {f"thread {k}": 50 for k in range(4)}
    parents = spans.filter(pl.col("name") == "shared")["parent"]
    assert count(spans[parents]) == {f"thread {k}": 50 for k in range(4)}


def test_a_span_may_end_on_another_thread(program: Program) -> None:
    spans = program.record("""
        import threading

        for i in range(600):            # more than the open table holds
            span = strobe.span("handed over").begin()
            if i % 100 == 0:
                thread = threading.Thread(target=span.end)
                thread.start(); thread.join()
            else: span.end()
    """)

    assert count(finished(spans)) == {"handed over": 600}
    assert spans["lane"].n_unique() == 1


def test_instants_and_counters_are_kept(program: Program) -> None:
    program.record("""
        strobe.instant("saved", file="a.pt")
        for value in (1, 2.5, -3, True, float("inf"), 2**60):
            strobe.counter("loss", value)
    """)
    recording = program.open()

    assert recording.instants().select("name", "attributes").collect().rows() == [
        ("saved", '{"file":"a.pt"}')
    ]
    ours = pl.col("name").str.starts_with("process ")
    values = recording.counters().filter(~ours).select("name", "value").collect().rows()
    assert values == [("loss", v) for v in (1.0, 2.5, -3.0, 1.0, float("inf"), 2.0**60)]


def test_spans_can_be_copied_and_pickled(program: Program) -> None:
    spans = program.record("""
        import copy, pickle

        with strobe.span("original", sizes=[1, 2]) as span:
            for same in (copy.copy(span), copy.deepcopy(span), pickle.loads(pickle.dumps(span))):
                assert type(same) is strobe.span and same is not span
                assert same.name == "original" and same.attributes == {"sizes": [1, 2]}
                same.end()              # the copy is not open
            with same: pass
    """)

    assert drawn(spans) == ["original", "  original"]
    assert [json.loads(text) for text in spans["attributes"]] == [{"sizes": [1, 2]}] * 2


def test_operators_sum_the_spans(program: Program) -> None:
    program.record("""
        for i in range(10):
            with strobe.span("step"):
                for j in range(3):
                    with strobe.span("mm"): pass
    """)
    recording = program.open()
    operators = recording.operators()
    spans = recording.spans().collect()

    assert dict(operators.select("name", "calls").iter_rows()) == {"step": 10, "mm": 30}
    total = dict(spans.group_by("name").agg(pl.sum("dur_ns")).iter_rows())
    assert dict(operators.select("name", "total_ns").iter_rows()) == total
    assert operators["self_ns"].sum() == total["step"]
