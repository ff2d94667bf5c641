# SPDX-License-Identifier: Apache-2.0
"""What the figures of a run say: one row for each, with what it must be and whether it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass
class Row:
    what: str
    ours: str
    others: str
    target: str
    holds: bool | None = None


def rows(results: Json) -> Iterator[Row]:
    yield from span_rows(results)
    yield from own_rows("100,000", results["spans"]["own"])
    added = results["import"]
    yield Row(
        "import strobe",
        f"+{added['added_ms']:.1f} ms",
        f"bare Python {added['bare_ms']:.1f} ms",
        "≤ 5 ms",
        added["added_ms"] <= 5,
    )
    hook = results["hook"]
    yield Row(
        "strobe.pth, idle",
        f"+{hook['reads'] * hook['read_us'] / 1e3:.2f} ms",
        f"bare Python {hook['bare_ms']:.1f} ms",
        "≤ 1 ms",
        hook["reads"] * hook["read_us"] <= 1000,
    )
    yield Row("a program under strobe run, start and end", f"+{hook['on_ms']:.0f} ms", "", "")
    torch = results.get("torch_table")
    for count, figures in results["recordings"].items():
        other = ""
        if torch and str(torch["spans"]) == count:
            other = f"torch {torch['stop_ms']:,.0f} ms"
        stop = figures["stop_ms"]
        yield Row(f"stop() at {int(count):,}", f"{stop:.1f} ms", other, "≤ 20 ms", stop <= 20)
    for count, figures in results["recordings"].items():
        table = figures["table"]
        one_million = count == "1000000"
        other = ""
        holds = table["peak_mb"] <= 300 if one_million else None
        if torch and str(torch["spans"]) == count:
            seconds = torch["stop_ms"] / 1e3 + torch["table_s"]
            other = f"torch {seconds:.1f} s, {torch['peak_mb']:,.0f} MB"
            if one_million:
                holds = bool(holds) and table["table_s"] <= seconds / 100
        yield Row(
            f"operator table of {int(count):,}, cold",
            f"{table['table_s']:.2f} s {_range(figures['tables_s'])}, {table['peak_mb']:.0f} MB",
            other,
            "≤ 1/100 of torch, ≤ 300 MB" if one_million else "",
            holds,
        )
    for figures in results["finalized"].values():
        yield Row(
            f"tables of {figures['events']:,} {figures['kind']}",
            f"{figures['seconds']:.1f} s, {figures['anonymous_mb']:.0f} MB",
            f"{figures['disk_bytes_per_event']:.0f} B of disk an event",
            "≤ 1 GB",
            figures["anonymous_mb"] <= 1000,
        )
    for count, figures in results["recordings"].items():
        above = figures["memory_above_bare_mb"]
        growth = figures["memory_growth_mb"]
        other = ""
        if torch and str(torch["spans"]) == count:
            other = f"torch {torch['memory_above_bare_mb']:,.0f} MB"
        yield Row(
            f"memory while recording {int(count):,}",
            f"+{above:.1f} MB ({growth:+.1f} on the way)",
            other,
            "≤ 16 MB, constant",
            above <= 16 and growth <= 4,
        )
    for figures in results["summary"]:
        yield from summary_rows(figures)
    yield from profiler_rows(results)
    yield from host_rows(results)
    yield from memory_lines_rows(results["memory_lines"])
    for figures in results.get("python_calls", ()):
        yield from python_rows(figures)
    for figures in results["stack_samples"]:
        yield from sample_rows(figures)
    if "torch_steps" in results:
        yield from torch_rows(results)
    for name in ("jax", "paddle"):
        if f"{name}_steps" in results:
            yield from framework_rows(name, results[f"{name}_steps"])
    if "mindspore_steps" in results:
        yield from mindspore_rows(results["mindspore_steps"])
    if "mindspore_analyse" in results:
        yield from mindspore_tree_rows(results["mindspore_analyse"])
    if "paddle_table" in results:
        yield from paddle_rows(results["paddle_table"])
    for name, figures in results["stored"].items():
        size = figures["bytes_per_row"]
        judged = figures["rows"] >= 1000
        yield Row(
            f"stored: {name[:40]}",
            f"{size:.2f} B/event",
            f"{figures['rows']:,} events",
            "≤ 8 B" if judged else "(too small to judge)",
            size <= 8 if judged else None,
        )


def summary_rows(figures: Json) -> Iterator[Row]:
    floor = figures["import polars"]
    for what, spent in figures.items():
        if spent is not floor:
            yield Row(
                f"strobe summary of 1,000,000 {what}, whole command",
                f"{spent['median_s']:.2f} s (at least {spent['min_s']:.2f})",
                f"import polars {floor['median_s']:.2f} s (at least {floor['min_s']:.2f})",
                "≤ 0.5 s",
                spent["median_s"] <= 0.5,
            )


def mindspore_tree_rows(results: Json) -> Iterator[Row]:
    events = f"{results['own_events']:,.0f} events of MindSpore"
    yield Row(
        f"the last step() of a round of {events}",
        f"{results['pause_s'] * 1e3:.0f} ms",
        f"MindSpore's, not analysing: {results['own_pause_s'] * 1e3:.0f} ms",
        "≤ its own + 50 ms",
        results["pause_s"] <= results["own_pause_s"] + 0.05,
    )
    yield Row(
        f"Profiler.analyse() of {events}",
        f"{results['analyse_s']:.2f} s, {results['analyse_cpu_s']:.2f} s of CPU; the first in a "
        f"process {results['first_analyse_s']:.2f} s, after {results['first_made_s']:.2f} s to "
        "make the Profiler, which imports Polars",
        f"MindSpore's stop(), which analyses: {results['own_s']:.2f} s, "
        f"{results['own_cpu_s']:.2f} s of CPU",
        "≤ 1/5",
        results["analyse_s"] <= results["own_s"] / 5,
    )
    one, four = results["ranks_s"]["1"], results["ranks_s"]["4"]
    yield Row(
        "analyse() of 4 such ranks, one process",
        f"{four:.2f} s",
        f"of 1: {one:.2f} s",
        "≤ 4.8×",
        four <= 4.8 * one,
    )
    idle = results["idle_step_ns"]
    yield Row("DynamicProfilerMonitor.step(), idle", f"{idle:.0f} ns", "", "≤ 1 µs", idle <= 1000)


def step_rows(
    steps: Json, events: str, peer: str, key: str = ""
) -> Iterator[tuple[str, Json, Row]]:
    """Yield what was asked, the ratio and the row of each way to profile a training step."""
    for asked, found in steps["ratios"].items():
        ours, theirs = (steps["added_us"][f"{who}, {asked}"] for who in ("strobe", key or peer))
        row = Row(
            f"step of {events}, {asked}",
            f"+{ours:.0f} µs on {steps['bare_us']:.0f}",
            f"{peer}.profiler +{theirs:.0f} µs: {found['ratio']:.2f}× "
            f"({found['low']:.2f} to {found['high']:.2f})",
            "",
        )
        yield asked, found, row


def equal_steps(steps: Json, events: str, peer: str, key: str = "") -> Iterator[Row]:
    for _, ratio, row in step_rows(steps, events, peer, key):
        row.target = "≤ 1.0×, or not to be told from it"
        row.holds = ratio["low"] <= 1.0
        yield row


def own_rows(what: str, own: Json) -> Iterator[Row]:
    """Yield what recordings say they cost, beside the CPU time that they added in the same run."""
    for name, found in own.items():
        stated, measured = found["own_us"], found["added_us"]
        asked = name.removeprefix("strobe, ")
        # A machine that is busy may add less than nothing.
        ratio = None if stated is None or measured <= 0 else stated / measured
        yield Row(
            f"own time of {what}, {asked}",
            "unknown, and said to be" if stated is None else f"{stated:,.0f} µs",
            f"+{measured:,.0f} µs measured" + ("" if ratio is None else f": {ratio:.2f}×"),
            "" if ratio is None else "0.5 to 2×",
            None if ratio is None else 0.5 <= ratio <= 2,
        )


def torch_rows(results: Json) -> Iterator[Row]:
    steps = results["torch_steps"]
    limits = {"plain": 0.75, "shapes": 0.64, "shapes and memory": 0.68}
    for asked, ratio, row in step_rows(steps, f"{steps['events']} torch events", "torch"):
        row.target = f"≤ {limits[asked]}×, interval below 1"
        row.holds = ratio["ratio"] <= limits[asked] and ratio["high"] < 1
        yield row
    yield from own_rows("a torch step", steps["own"])
    closed = steps["added_us"]["strobe, closed"]
    yield Row("the same step, profiler closed", f"{closed:+.0f} µs", "", "")
    ours, torch = results["torch_many"], results["torch_table"]
    events = f"{ours['events']:,} torch events"
    yield Row(
        f"stop() at {events}",
        f"{ours['stop_ms']:.1f} ms",
        f"torch {torch['stop_ms']:,.0f} ms",
        "≤ 20 ms",
        ours["stop_ms"] <= 20,
    )
    table, seconds = ours["table"], torch["stop_ms"] / 1e3 + torch["table_s"]
    yield Row(
        f"operator table of {events}, cold",
        f"{table['table_s']:.2f} s, {table['peak_mb']:.0f} MB",
        f"torch {seconds:.1f} s, {torch['peak_mb']:,.0f} MB",
        "≤ 1/100 of the time, 1/10 of the memory",
        table["table_s"] <= seconds / 100 and table["peak_mb"] <= torch["peak_mb"] / 10,
    )


def paddle_rows(tables: Json) -> Iterator[Row]:
    ours, theirs = tables["strobe"], tables["paddle"]
    events = f"{ours['events']:,.0f} events"
    yield Row(
        f"summary() of strobe.paddle, {events}, CPU time",
        f"{ours['summary_s']:.2f} s, once {ours['tables_s']:.2f} s for the recording's tables",
        f"paddle.profiler {theirs['summary_s']:.0f} s",
        "≤ 1/100",
        ours["summary_s"] <= theirs["summary_s"] / 100,
    )
    for form in ("pb", "json"):
        seconds = ours[f"load_{form}_s"]
        rate = ours["events"] / seconds
        beside = f"paddle.profiler {theirs['load_pb_s']:.2f} s" if form == "pb" else "it has none"
        yield Row(
            f"load_profiler_result of {events}, {form}, CPU time",
            f"{seconds:.2f} s: {rate / 1e6:.2f} M/s",
            beside,
            "≥ 1 M/s",
            rate >= 1e6,
        )


def framework_rows(name: str, steps: Json) -> Iterator[Row]:
    events = f"{steps['events'] // steps['steps']} {name} events"
    yield from equal_steps(steps, events, name, "own")
    yield from own_rows(f"a {name} step", steps["own"])
    stop_ms = steps["stop_ms"]
    yield Row(
        f"stop() at {steps['events']:,} {name} events",
        f"{stop_ms['strobe']:.0f} ms",
        f"{name}.profiler {stop_ms['own']:.0f} ms, with its file",
        "≤ its own + 50 ms",
        stop_ms["strobe"] <= stop_ms["own"] + 50,
    )
    if "own_table_s" in steps:
        yield Row(
            "from there to the operator table",
            f"{steps['table_s']:.2f} s",
            f"summary() {steps['own_table_s']:.1f} s",
            "≤ 1/50",
            steps["table_s"] <= steps["own_table_s"] / 50,
        )


def mindspore_rows(steps: Json) -> Iterator[Row]:
    events = f"{steps['events'] // steps['steps']} MindSpore operators"
    yield from equal_steps(steps, events, "mindspore")
    yield from own_rows("a MindSpore step", steps["own"])
    closed = steps["added_us"]["strobe, closed"]
    yield Row("the same step, profiler closed", f"{closed:+.0f} µs", "", "")
    yield Row(
        f"stop() at {steps['events']:,} MindSpore operators",
        f"{steps['stop_ms']:.1f} ms",
        f"mindspore.profiler {steps['own_stop_ms']:.1f} ms",
        "≤ its own + 50 ms",
        steps["stop_ms"] <= steps["own_stop_ms"] + 50,
    )
    yield Row(
        "from there to the operator table",
        f"{steps['table_ms']:.0f} ms; the first in a process, which imports Polars, "
        f"{steps['first_table_ms']:.0f} ms",
        f"analyse() {steps['analyse_ms']:,.0f} ms",
        "≤ 1/5",
        steps["table_ms"] <= steps["analyse_ms"] / 5,
    )


def python_rows(figures: Json) -> Iterator[Row]:
    """Calls traced beside others, of which viztracer is the one to beat."""
    for call, added in figures["calls"].items():
        ours = added["strobe"]
        others = {name: took for name, took in added.items() if name != "strobe"}
        judged = "viztracer" in others and call == "Python call"
        most = 0.85 if figures["python"].startswith(("3.10.", "3.11.")) else 0.65
        yield Row(
            f"{call}, traced, Python {figures['python']}",
            f"+{ours:.0f} ns",
            ", ".join(f"{name} +{t:.0f} ns: {ours / t:.2f}×" for name, t in others.items()),
            f"≤ {most}× viztracer" if judged else "",
            ours <= most * others["viztracer"] if judged else None,
        )
    yield from own_rows(f"20 programs, traced, Python {figures['python']}", figures["own"])


def sample_rows(figures: Json) -> Iterator[Row]:
    """The stack sampler, program by program: the rate it keeps, its cost, how true shares are."""
    for program, found in figures["programs"].items():
        for rate in found:
            yield Row(
                f"samples at {rate['asked_hz']} Hz of {program}, Python {figures['python']}",
                f"{rate['kept_hz']:.0f} Hz, {rate['own_share_of_wall']:.2%} of one core",
                f"shares up to {rate['largest_error']:.1%} off, {rate['error_by_chance']:.1%} by "
                "chance alone",
                "the rate, or 1 % of one core; ≤ 2 % off beyond chance",
                sampler_holds(rate),
            )


def sampler_holds(rate: Json) -> bool:
    # A rate may be lower only where the budget is used up.
    kept = rate["kept_hz"] >= 0.95 * rate["asked_hz"] or rate["own_share_of_wall"] >= 0.009
    beyond_chance = rate["largest_error"] - rate["error_by_chance"]
    return kept and rate["own_share_of_wall"] <= 0.01 and beyond_chance <= 0.02


def profiler_rows(results: Json) -> Iterator[Row]:
    for state, figures in results["steps"].items():
        ends = state.startswith("end of a round")
        median_us, p99_us = figures["median_us"], figures["p99_us"]
        yield Row(
            f"step(), {state}",
            f"{median_us / 1e3:.1f} ms (p99 {p99_us / 1e3:.1f})" if ends else f"{median_us:.1f} µs",
            "",
            "≤ 50 ms (p99)" if ends else "",
            p99_us <= 50_000 if ends else None,
        )
    encoders = results["export"]["encoders"]
    beside = ", ".join(f"{name} {e['ns_per_event']:.0f} ns" for name, e in encoders.items())
    for form in ("chrome", "chrome.gz", "perfetto"):
        figures = results["export"][form]
        spent = figures["ns_per_event"]
        yield Row(
            f"export of 1,000,000: {form}",
            f"{spent:.0f} ns, {figures['bytes_per_event']:.0f} B per event",
            beside if form == "chrome" else "",
            "" if form == "chrome.gz" else "≤ 80 ns",
            None if form == "chrome.gz" else spent <= 80,
        )


def host_rows(results: Json) -> Iterator[Row]:
    sampler, watch = results["host"]["sampler"], results["host"]["watch"]
    yield Row(
        "hardware=True, processor time of the sampler",
        f"{sampler['own_s'] * 1e3:.0f} ms ({sampler['share']:.2%})",
        f"the program's {sampler['program_s']:.1f} s, four children",
        "≤ 0.5 %",
        sampler["share"] <= 0.005,
    )
    for state in ("on", "off"):
        yield Row(f"a batch of strobe.watch ({state})", f"+{watch[f'{state}_ns']:,.0f} ns", "", "")


_PROGRAMS_OF_MEMORY = {
    "small": "blocks that are freed at once",
    "growing": "a new peak with each block",
    "held": "2 million blocks held",
    "deep": "deep stacks",
    "lines": "5,000 lines",
    "threads": "new peaks in four threads",
}


def memory_lines_rows(results: Json) -> Iterator[Row]:
    for program, figures in results.items():
        bare, traced = figures["bare_s"], figures["tracemalloc_s"]
        yield Row(
            f"memory_lines=True, {_PROGRAMS_OF_MEMORY[program]}",
            f"{figures['strobe_s']:.2f} s ({figures['strobe_s'] / bare:.1f}× bare)",
            f"tracemalloc {traced:.2f} s ({traced / bare:.1f}× bare): {figures['ratio']:.2f}×",
            "≤ 1.5× tracemalloc",
            figures["ratio"] <= 1.5,
        )


# The most that a span with attributes may cost, in plain spans.
_WITH_ATTRIBUTES = {
    "strobe.span, an int": 3,
    "strobe.span, a text": 3,
    "strobe.span, three attributes": 5,
}


def span_rows(results: Json) -> Iterator[Row]:
    floor_name = "empty C manager, made before"
    runs = [("", results["spans"]), *results["peers"].items()]
    for state, limit in (("on", 1.5), ("off", 0.8)):
        main = results["spans"][state]
        floor = main.get(floor_name)
        plain = main["strobe.span, made each time"]
        for name, figures in main.items():
            ratio = f"{figures['median'] / floor['median']:.2f}× the empty manager" if floor else ""
            judged = floor and figures is plain
            most = _WITH_ATTRIBUTES.get(name) if state == "on" else None
            if most:
                times = figures["median"] / plain["median"]
                ratio = f"{times:.2f}× a plain span"
                yield Row(f"{name} ({state})", _spread(figures), ratio, f"≤ {most}×", times <= most)
                continue
            yield Row(
                f"{name} ({state})",
                _spread(figures),
                "" if name == floor_name else ratio,
                f"≤ {limit}×" if judged else "",
                figures["median"] <= limit * floor["median"] if judged else None,
            )
        limits = {"torch record_function": 40, "paddle RecordEvent": 25, "jax TraceAnnotation": 2}
        for _, run_of in runs[1:]:
            ours = run_of[state]["strobe.span, made each time"]["median"]
            for name, times in limits.items():
                if name not in run_of[state]:
                    continue
                theirs = run_of[state][name]
                factor = theirs["median"] / ours
                yield Row(
                    f"strobe.span beside {name} ({state})",
                    f"{ours:.0f} ns",
                    f"{_spread(theirs)}: {factor:.1f}× ours",
                    f"≥ {times}×" if state == "on" else "",
                    factor >= times if state == "on" else None,
                )


def _range(values: list[float]) -> str:
    return f"({values[0]:.2f} to {values[-1]:.2f})" if len(values) > 1 else "(one run)"


def _spread(figures: Json) -> str:
    return f"{figures['median']:.0f} ns ({figures['min']:.0f} to {figures['p90']:.0f})"
