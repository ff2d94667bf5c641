# SPDX-License-Identifier: Apache-2.0
"""Names and attribute values come back exactly as they were given, whatever they are."""

from __future__ import annotations

import json

import polars as pl
import pytest

from programs import Program, count, finished
from strobe.model.text import unescape

# Written with escapes only, so that the programs get the same values from their source.
NAMES = [
    "",
    "plain",
    "\0",
    "a\0b\0",
    "line\nbreak\r\t",
    " spaces ",
    "\u00fc\u4e2d\U0001f525",
    "\ud83d",
    "\udd25",
    "\udd25\ud83d",
    "\\ud83d",
    "\\\ud83d",
    "C:\\udata\\temp",
    '"quoted" {json: [1]}',
    "\ufeff\uffff\U0010ffff",
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**63,
    10**4000,
    0.1,
    -0.0,
    1e308,
    5e-324,
    -(2**63),
    2**63,
    "",
    "\0",
    "\ud83d",
    "\\ud83d",
    "\U0001f525",
    [],
    {},
    [1, [2, [3, None]]],
    {"a": {"b": [True, "\ud83d"]}, "": 1, "\0": 2},
]


def test_names_come_back_exactly(program: Program) -> None:
    spans = program.record(f"""
        for name in {NAMES!a}:
            with strobe.span(name): pass
    """)

    assert [unescape(name) for name in spans["name"]] == NAMES


def test_attributes_come_back_exactly(program: Program) -> None:
    spans = program.record(f"""
        for value in {VALUES!a}:
            with strobe.span("s", value=value, **{{"any key\\0\\ud83d": 1}}): pass
            strobe.instant("i", value=value)
    """)
    read = [json.loads(text) for text in spans["attributes"]]

    assert read == [{"value": value, "any key\0\ud83d": 1} for value in VALUES]
    assert [type(row["value"]) for row in read] == [type(value) for value in VALUES]
    instants = program.open().instants().collect()["attributes"]
    assert [json.loads(text) for text in instants] == [{"value": value} for value in VALUES]


def test_texts_of_any_length_come_back(program: Program) -> None:
    """Up to 64 bytes are in the ring, 16 in each record; longer ones are defined as names are."""
    texts = ["é" * count + "x" * more for count in (0, 1, 16, 32, 33) for more in range(20)]

    spans = program.record(f"""
        for text in {texts!a}:
            with strobe.span("s", before=1, text=text, after=text[:3]): pass
    """)

    assert [json.loads(text) for text in spans["attributes"]] == [
        {"before": 1, "text": text, "after": text[:3]} for text in texts
    ]


def test_numbers_that_json_lacks_are_texts(program: Program) -> None:
    spans = program.record("""
        nan, infinity = float("nan"), float("inf")
        with strobe.span("s", a=nan, b=infinity, c=-infinity): pass
        with strobe.span("s", a=[nan, {"deep": infinity}], b=1.5): pass
    """)

    read = spans["attributes"].str.json_decode(pl.Struct({"b": pl.String}))
    assert read.struct.field("b").to_list() == ["Infinity", "1.5"]
    assert [json.loads(text) for text in spans["attributes"]] == [
        {"a": "NaN", "b": "Infinity", "c": "-Infinity"},
        {"a": ["NaN", {"deep": "Infinity"}], "b": 1.5},
    ]


def test_scalars_of_numpy_are_numbers(program: Program) -> None:
    spans = program.record("""
        import numpy as np
        with strobe.span("s", a=np.int64(-3), b=np.float32(0.5), c=np.bool_(True)): pass
        with strobe.span("s", a=[np.int8(1), np.float64("nan")], b={"x": np.uint64(2**63)}): pass
    """)

    assert [json.loads(text) for text in spans["attributes"]] == [
        {"a": -3, "b": 0.5, "c": True},
        {"a": [1, "NaN"], "b": {"x": 2**63}},
    ]


def test_a_value_that_cannot_be_kept_is_refused_in_a_line(program: Program) -> None:
    output = program.run("""
        import numpy as np
        from strobe.errors import UsageError
        for value in (np.zeros(10**6), ["x" * 10**7, object()], object):
            try:
                strobe.span("s", value=value)
            except UsageError as error:
                print(len(str(error)) < 500, str(error).startswith("span(value="))
    """)

    assert output.split() == ["True"] * 6


def test_attributes_of_a_span_that_a_kill_left_open(program: Program) -> None:
    program.run(
        """
        import os, signal
        profiler = strobe.Profiler(output=OUT)
        profiler.start()
        open_span = strobe.span("open", step=7, why="a text of more than sixteen bytes").begin()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        exits=-9,
    )

    (span,) = program.open().spans().collect().rows(named=True)
    assert span["unfinished"]
    assert json.loads(span["attributes"]) == {"step": 7, "why": "a text of more than sixteen bytes"}


def test_a_span_without_attributes_has_none(program: Program) -> None:
    spans = program.record("""
        with strobe.span("without"): pass
        with strobe.span("with", a=1): pass
        with strobe.span("without"): pass
    """)

    assert spans["attributes"].to_list() == [None, '{"a":1}', None]


def test_a_name_may_be_an_attribute_or_given_by_keyword(program: Program) -> None:
    spans = program.record("""
        with strobe.span(name="a"): pass
        with strobe.span(size=2, name="b"): pass
        with strobe.span(name="c", size=3): pass
    """)

    assert spans.select("name", "attributes").rows() == [
        ("a", None),
        ("b", '{"size":2}'),
        ("c", '{"size":3}'),
    ]


def test_a_str_subclass_is_its_text(program: Program) -> None:
    spans = program.record("""
        class Odd(str):
            def __eq__(self, other): return True
            def __hash__(self): return 1
            def __str__(self): return "not this"

        for text in ("one", "two"):
            with strobe.span(Odd(text)): pass
    """)

    assert spans["name"].to_list() == ["one", "two"]


def test_a_megabyte_is_a_name(program: Program) -> None:
    # 16 of them are more than the table of strings holds at once (16 MB).
    spans = program.record("""
        for i in range(16):
            with strobe.span(f"{i:03}" + "\\N{FIRE}x" * (1 << 18)): pass
        with strobe.span("000" + "\\N{FIRE}x" * (1 << 18), text="y" * (1 << 20)): pass
    """)
    tail = "\N{FIRE}x" * (1 << 18)

    assert spans["name"].to_list() == [f"{i:03}{tail}" for i in [*range(16), 0]]
    assert json.loads(spans["attributes"][-1]) == {"text": "y" * (1 << 20)}


def test_100_000_distinct_names(program: Program) -> None:
    # More than the table of strings holds at once (131 072), and the first ones again.
    spans = program.record("""
        for i in [*range(140_000), *range(1000)]:
            with strobe.span(f"name {i}"): pass
    """)
    counted = count(finished(spans))

    assert len(counted) == 140_000
    assert counted["name 0"] == counted["name 999"] == 2
    assert counted["name 1000"] == counted["name 139999"] == 1
    assert spans["name"].to_list()[:140_000] == [f"name {i}" for i in range(140_000)]


WRONG = {
    # call: (error, what its message says)
    "span()": (TypeError, "span() takes a name"),
    "span('a', 'b')": (TypeError, "2 values given"),
    "span(1)": ("UsageError", "span(name=1): name must be a str, not int"),
    "span(None)": ("UsageError", "span(name=None): name must be a str, not NoneType"),
    "span(b'a')": ("UsageError", "span(name=b'a'): name must be a str, not bytes"),
    "span(name=7)": ("UsageError", "span(name=7): name must be a str, not int"),
    "span('a', x={1, 2})": ("UsageError", "span(x={1, 2}): an attribute is a str"),
    "span('a', x=b'1')": ("UsageError", "span(x=b'1'): an attribute is a str"),
    "span('a', ok=1, bad=[object])": ("UsageError", "pass str(bad) instead"),
    "span('a', x=10**5000)": ("UsageError", "an attribute is a str"),
    "span('a')(1, 2)": (TypeError, "called with the one function"),
    "span('a')(len, x=1)": (TypeError, "called with the one function"),
    "span('a')(5)": ("UsageError", "@strobe.span('a') on 5"),
    "span('a')(int)": ("UsageError", "it decorates functions and methods"),
    "instant()": (TypeError, "instant() takes a name"),
    "instant(1)": ("UsageError", "instant(name=1): name must be a str"),
    "instant('a', x={1})": ("UsageError", "instant(x={1}): an attribute is a str"),
    "counter('a')": (TypeError, "counter() takes a name and a value"),
    "counter(1, 2)": ("UsageError", "counter(name=1): name must be a str"),
    "counter('a', 'b')": ("UsageError", "counter('a', value='b'): value must be a number, not str"),
    "counter('a', None)": ("UsageError", "value must be a number, not NoneType"),
    "Profiler(output='')": ("UsageError", "Profiler(output=''): output must be the path"),
    "Profiler(output=3)": ("UsageError", "Profiler(output=3): output must be the path"),
    "Profiler(name='')": ("UsageError", "Profiler(name=''): name must be a str"),
    "Profiler(name=b'x')": ("UsageError", "Profiler(name=b'x'): name must be a str"),
    "Profiler().stop()": ("StateError", "stop() while not recording; call start() first"),
    "Profiler().recording": ("StateError", "before start()"),
    "open(5)": ("UsageError", "open(path=5): path must be a str or a Path"),
    "open('/nowhere')": ("FormatError", "'/nowhere', recording: there is nothing at this path"),
}


@pytest.mark.parametrize("recording", [False, True], ids=["off", "on"])
def test_wrong_use_raises_with_the_value_and_the_way_out(program: Program, recording: bool) -> None:
    program.run(f"""
        import contextlib, json
        from strobe import *

        said = {{}}
        with strobe.Profiler(output=OUT) if {recording} else contextlib.nullcontext():
            for call in {list(WRONG)!r}:
                try: eval(call)
                except Exception as error: said[call] = [type(error).__name__, str(error)]
        print(json.dumps(said))
    """)
    said = json.loads(program.printed)

    for call, (kind, message) in WRONG.items():
        name = kind if isinstance(kind, str) else kind.__name__
        assert call in said, f"{call} did not raise"
        assert said[call][0] == name, said[call]
        assert message in said[call][1]


def test_state_errors_say_what_to_do(program: Program) -> None:
    program.run("""
        profiler = strobe.Profiler(output=OUT)
        def said(call):
            try: call()
            except strobe.StateError as error: print(str(error).replace(OUT, "OUT"))
        profiler.start()
        said(profiler.start)
        said(lambda: profiler.recording)
        profiler.stop()
        said(profiler.stop)
    """)
    again, recording, stop = program.printed.splitlines()

    assert again.startswith("start() while recording into 'OUT/")
    assert again.endswith("call stop() first, or make a second Profiler")
    assert recording == "recording while still recording; call stop() first"
    assert stop == "stop() while not recording; call start() first"
    program.open()
