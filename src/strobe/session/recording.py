# SPDX-License-Identifier: Apache-2.0
"""The Recording: a directory of tables, whoever wrote it and whenever."""

from __future__ import annotations

import os
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strobe.errors import FormatError, StateError, UsageError
from strobe.record.messages import show
from strobe.session.opening import Opening
from strobe.store import files, inventory, manifest, places

if TYPE_CHECKING:
    import polars as pl

    from strobe.analysis.flame import Flame
    from strobe.analysis.flops import FlopsRate
    from strobe.finalize.build import Progress
    from strobe.reports.text import Summary


class Recording:
    """The tables of one recording; each method reads its file when the frame is collected.

    A profiler hands out its recordings inside the program that it records, so nothing heavy is
    imported before a table is asked for.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _opening(self) -> Opening:
        return Opening(self._path, _terminal_progress())

    @property
    def _tables(self) -> Path:
        return self._opening.tables()

    @property
    def tables_path(self) -> Path:
        """The directory of the tables, written first if need be."""
        return self._tables

    def _scan(self, table: str) -> pl.LazyFrame:
        from strobe.store.tables import scan

        return scan(self._tables, table)

    def __repr__(self) -> str:
        return f"strobe.open({str(self._path)!r})"

    @property
    def path(self) -> Path:
        """The recording's directory."""
        return self._path

    def spans(self) -> pl.LazyFrame:
        """One row per span, by start; see docs/tables.md for the columns."""
        return self._scan("spans")

    def steps(self) -> pl.LazyFrame:
        """One row per step or request; leave out the unfinished ones of averages."""
        return self._scan("steps")

    def instants(self) -> pl.LazyFrame:
        """One row per strobe.instant."""
        return self._scan("instants")

    def counters(self) -> pl.LazyFrame:
        """One row per strobe.counter."""
        return self._scan("counters")

    def links(self) -> pl.LazyFrame:
        """Pairs of spans of which one led to the other (docs/tables.md)."""
        return self._scan("links")

    def allocations(self) -> pl.LazyFrame:
        """Memory that a framework allocated and freed (docs/tables.md)."""
        return self._scan("allocations")

    def memory_lines(self) -> pl.LazyFrame:
        """What lines of Python held, at a few moments (docs/tables.md)."""
        return self._scan("memory_lines")

    def collectives(self) -> pl.LazyFrame:
        """Communication with other processes (docs/tables.md)."""
        return self._scan("collectives")

    def batches(self) -> pl.LazyFrame:
        """Batches that loaders handed out, and the wait for each (docs/tables.md)."""
        return self._scan("batches")

    def stacks(self) -> pl.LazyFrame:
        """One row per distinct stack of Python calls (docs/tables.md)."""
        return self._scan("stacks")

    def frames(self) -> pl.LazyFrame:
        """One row per function in a stack."""
        return self._scan("frames")

    def samples(self) -> pl.LazyFrame:
        """One row per thread and instant at which its stack was sampled."""
        return self._scan("samples")

    def threads(self) -> pl.LazyFrame:
        """One row per lane: a thread, or one Python context of a thread."""
        return self._scan("threads")

    def metadata(self) -> pl.LazyFrame:
        """What is known of the recording as a whole: key, value."""
        return self._scan("metadata")

    def completeness(self) -> pl.DataFrame:
        """One row per source: asked, collected, dropped, unfinished, the profiler's own time."""
        return self._scan("completeness").collect()

    def operators(self) -> pl.DataFrame:
        """One row per span name, the largest self time first.

        Columns: name, calls, total_ns, self_ns, mean_ns, p50_ns, p95_ns, p99_ns, max_ns, min_ns,
        share (of the self time of all spans).
        """
        early = self._opening.operators()
        return self._scan("operators").collect() if early is None else early

    def functions(self) -> pl.DataFrame:
        """One row per function that was called or sampled, the largest self time first.

        Columns: name, file, line, module, calls (samples where it was sampled), total_ns, self_ns,
        share (of the self time of all).
        """
        import polars as pl

        from strobe.analysis.functions import function_summary

        columns = ("lane", "start_ns", "dur_ns", "self_ns", "stack")
        is_call = pl.col("category") == "python"
        calls = self.spans().filter(is_call).select(columns).collect()
        tables = (self.samples(), self.stacks(), self.frames())
        return function_summary(calls, *(table.collect() for table in tables))

    def flame(self) -> Flame:
        """Return where the time went, stack by stack: what `strobe flame` draws.

        Of Python's calls and the spans among them; of samples; or of spans alone.
        """
        from strobe.analysis.flame import flame

        columns = ("name", "category", "device", "lane", "start_ns", "dur_ns", "stack")
        spans = self.spans().select(columns).collect()
        tables = (self.threads(), self.stacks(), self.frames(), self.samples())
        return flame(spans, *(table.collect() for table in tables))

    def operators_by(self, column: Literal["thread", "step", "module"]) -> pl.DataFrame:
        """One row per thread, step or module, and span name: as operators(), that column first.

        A span belongs to the step in which it began. A module is the path of a layer.
        """
        from strobe.analysis.operators import operator_summary_by
        from strobe.analysis.steps import number_steps

        every = self._collect_others().lazy()
        if column == "step":
            spans = number_steps(every.collect(), self.steps().collect()).lazy()
        elif column == "thread":
            spans = every.join(self.threads().select("lane", "thread"), on="lane", how="left")
        elif column == "module":
            spans = every
        else:
            message = f"operators_by({column!r}): must be 'thread', 'step' or 'module'"
            raise UsageError(message)
        return operator_summary_by(spans, column).collect()

    def _collect_others(self, *columns: str) -> pl.DataFrame:
        """Return the spans but for Python's calls, as if these had not been recorded."""
        from strobe.analysis.functions import without_calls

        spans = self.spans()
        return without_calls((spans.select(columns) if columns else spans).collect())

    def step_statistics(self) -> pl.DataFrame:
        """How long the steps took: count, mean, percentiles, the slowest; unfinished ones left out.

        Columns: kind, steps, mean_ns, p50_ns, p95_ns, min_ns, max_ns, slowest, samples_per_s.
        """
        from strobe.analysis.steps import step_statistics

        return step_statistics(self.steps().collect())

    def phases(self) -> pl.DataFrame:
        """Where the steps go: data loading, forward, backward, optimizer, zero_grad and other.

        The phases of a step sum to the step; steps that have not ended are left out. No rows where
        no phases are known. Columns: phase, total_ns, per_step_ns, share (of the time of the
        steps).
        """
        from strobe.analysis.phase_times import phase_summary, phase_times

        columns = ("category", "phase", "lane", "pid", "tid", "start_ns", "dur_ns", "parent")
        spans = self._collect_others(*columns)
        return phase_summary(phase_times(spans, self.steps().collect()))

    def loaders(self) -> pl.DataFrame:
        """How long the program waited for its data: one row per loader, the longest wait first.

        Columns: loader, batches, samples, wait_ns, mean_wait_ns, max_wait_ns; starved_ns and
        step_ns, the waits inside steps and the time of these, and share, the one by the other;
        batches_per_s, samples_per_s; fetch_ns, collate_ns, cpu_ns, queue (means), workers.
        """
        from strobe.analysis.loading import loader_summary

        return loader_summary(self.batches().collect(), self.steps().collect())

    def workers(self) -> pl.DataFrame:
        """What the workers of loaders did: one row per loader and worker, as far as it was seen.

        Columns: loader, worker, batches; fetch_ns, collate_ns and cpu_ns of these in all;
        cpu_share, the part of fetch_ns in which it had the processor.
        """
        from strobe.analysis.loading import worker_summary

        return worker_summary(self.batches().collect())

    def counter_summary(self) -> pl.DataFrame:
        """What counters were at: name, pid, values (how many), mean, min, max, last."""
        from strobe.analysis.counters import counter_summary

        return counter_summary(self.counters().collect())

    def flops_rate(self) -> FlopsRate | None:
        """Floating-point operations in the steps and the time of these; without steps, in all.

        None where no span has a figure (with_flops of the profiler).
        """
        from strobe.analysis.flops import flops_rate

        spans = self._collect_others("category", "start_ns", "dur_ns", "parent", "flops")
        return flops_rate(spans, self.steps().collect())

    def peak_allocated(self) -> pl.DataFrame:
        """The most memory in use: pid, device (null for the host), peak_bytes."""
        from strobe.analysis.memory import peak_allocated

        return peak_allocated(self.allocations()).collect()

    def memory_held(self) -> pl.DataFrame:
        """Who held memory when most of it was in use: one row per process, device and owner.

        Columns: pid, device (null for the host), start_ns (when that was), owner (a span's name,
        "(before the start)" or "(unknown)"), module, function (of Python, with with_stack), blocks,
        bytes, share (of all held then).
        """
        from strobe.analysis.memory import held_at_peak

        return held_at_peak(self.memory_timeline())

    def memory_timeline(self) -> pl.DataFrame:
        """What each owner holds from each allocation or free on: one row per event.

        Columns: pid, device, start_ns, owner, module, function, held_bytes and held_blocks by that
        owner, allocated_bytes by all.
        """
        from strobe.analysis.memory import callers, owner_timeline

        spans = self.spans().select("name", "module", "stack").collect()
        function = callers(spans, self.stacks().collect(), self.frames().collect())
        return owner_timeline(self.allocations().collect(), spans.with_columns(function=function))

    def memory_text(self, *, top: int = 15, width: int | None = None) -> str:
        """Return a text for people: memory over time, the most of it, and who held it then."""
        from strobe.analysis.memory import held_at_peak
        from strobe.reports.memory import Memory, memory_text

        metadata = dict(self.metadata().collect().iter_rows())
        timeline = self.memory_timeline()
        memory = Memory(
            start_ns=int(metadata["start_ns"]),
            end_ns=int(metadata["end_ns"]),
            timeline=timeline,
            held=held_at_peak(timeline),
            counters=self.counters().collect(),
            lines=self.memory_lines().collect(),
            instants=self.instants().collect(),
        )
        return memory_text(memory, top=top, width=width)

    def breakdown(self, of: str) -> pl.DataFrame:
        """Where the time of the spans named `of` goes: their direct children and the rest.

        Python's calls take part only where no other span has the name.
        Columns: name, calls, total_ns, per_parent_ns, share (of the time of the `of` spans).
        """
        from strobe.analysis.breakdown import phase_breakdown

        parts = phase_breakdown(self._collect_others().lazy(), of).collect()
        return parts if parts.height else phase_breakdown(self.spans(), of).collect()

    def summary(
        self,
        *,
        by: Literal["name", "thread", "step", "module", "loader", "counter"] = "name",
        sort: str = "self",
        top: int = 20,
        width: int | None = None,
    ) -> str:
        """Return a text for people: the steps and where their time goes, then the operators.

        `width` is that of the terminal unless given. Raises UsageError for another `by` or `sort`.
        By loader and by counter, waits for data and counters take the place of the operators, and
        `sort` does nothing.
        """
        from strobe.reports.text import counters_text, loaders_text, summary_text

        if by == "loader":
            loaders, workers = self.loaders().head(top), self.workers().head(top)
            return loaders_text(loaders, workers, self.step_statistics(), width=width)
        if by == "counter":
            return counters_text(self.counter_summary(), width=width)

        return summary_text(self._gather_summary(by, sort, top), width=width)

    def _repr_html_(self) -> str:
        from strobe.reports.text import summary_html

        return summary_html(self._gather_summary("name", "self", 20))

    def _gather_summary(self, by: str, sort: str, top: int) -> Summary:
        from strobe.reports.text import Summary, sort_operators

        operators = self.operators() if by == "name" else self.operators_by(by)  # type: ignore[arg-type]
        phases = self.phases()
        return Summary(
            operators=sort_operators(operators, sort),
            functions=self.functions(),
            steps=self.step_statistics(),
            phases=phases,
            breakdown=self._break_steps_down(user_spans_only=phases.height > 0),
            flops=self.flops_rate(),
            peaks=self.peak_allocated(),
            completeness=self.completeness().to_dicts(),
            top=top,
        )

    def _break_steps_down(self, *, user_spans_only: bool) -> pl.DataFrame:
        """Where phases are known, operators are no news: only what the user named is."""
        from strobe.analysis.steps import step_breakdown, user_spans

        spans, steps = self._collect_others(), self.steps().collect()
        if not user_spans_only:
            return step_breakdown(spans, steps)
        parts = step_breakdown(user_spans(spans), steps)
        return parts if parts.height > 1 else parts.clear()


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording, or the newest one that a folder holds, with a line that says which.

    Tables that are not there yet are written first: those of a program that has just stopped, or
    that was killed. Raises FormatError when `path` is no recording or a newer strobe wrote it, and
    StateError while the program still records.
    """
    recording = _find(path)
    content = manifest.read(recording)
    if content.stop is None and not places.is_finalized(recording):
        alive = manifest.is_alive(content.pid, content.process_start, content.host, content.boot)
        if alive:
            message = (
                f"open({os.fspath(path)!r}): process {content.pid} is still recording into it; "
                "call stop() there first"
            )
            raise StateError(message)
    opened = Recording(recording)
    if not places.is_finalized(recording):
        opened.operators()  # known now, so that what is wrong shows here
    return opened


def _find(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        message = f"open(path={path!r}): path must be a str or a Path"
        raise UsageError(message)
    folder = Path(path)
    if not folder.is_dir():
        reason = "it is a file" if folder.exists() else "there is nothing at this path"
        raise FormatError(path, "recording", f"{reason}; give the directory of a recording")
    found = places.find_recordings(folder.absolute())
    if not found:
        problem = files.oddity(folder / manifest.FILE_NAME)
        if problem is not None:
            raise FormatError(path, manifest.FILE_NAME, problem)
        raise FormatError(path, "recording", "neither a recording nor a folder that holds one")
    return found[0] if len(found) == 1 else _choose(folder.absolute(), found)


def _choose(folder: Path, found: list[Path]) -> Path:
    """Return the newest recording, and say so; of the ranks of one run it is the lowest rank's."""
    chosen = inventory.newest(found)
    which = "the newest"
    if chosen.is_running:
        which = "the newest, which is still being recorded"
    elif chosen.is_passed:
        which = "the newest that has ended"
    if chosen.ranks > 1:
        which = f"rank {chosen.rank} of the {chosen.ranks} ranks of {which}"
    name = str(chosen.path.relative_to(folder))
    show(
        f"{len(found)} recordings in {str(folder)!r}: opening {which}, {name!r}; name another one "
        "to open it ('strobe info' lists them)"
    )
    return chosen.path


def _terminal_progress() -> Progress:
    """Return a progress line for people who wait longer than a second at a terminal."""
    began = time.monotonic()
    at_terminal = sys.stderr is not None and sys.stderr.isatty()

    def progress(stage: str, share: float) -> None:
        if not at_terminal or time.monotonic() - began < 1:
            return
        end = "\n" if share >= 1 else ""
        print(f"\rstrobe: {stage} {share:4.0%} ", end=end, file=sys.stderr, flush=True)

    return progress
