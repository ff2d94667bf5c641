# SPDX-License-Identifier: Apache-2.0
"""Where the disk is full, small, read-only or gone, the program goes on and the loss is told."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strobe
from programs import Program, count


@pytest.fixture(autouse=True)
def _without_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the counters of the process: records are counted here, one by one."""
    monkeypatch.setenv("STROBE_USAGE", "0")


SPANS = 300_000  # 9.6 MB


def mount(*arguments: str | Path) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here ({done.stderr.strip()})")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB: room for one ring (1 MB) and a few chunks."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    path = tmp_path / "small"
    path.mkdir()
    mount("-t", "tmpfs", "-o", "size=3m", "strobe-test", path)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def check_loss(figures: dict[str, Any], asked: int, reason: str) -> None:
    assert figures["asked"] == asked
    assert 0 < figures["dropped"] < asked
    assert figures["collected"] > 0
    assert reason in figures["note"]


def test_a_disk_that_fills_up(program: Program, small_disk: Path) -> None:
    program.run(
        f"""
        profiler = strobe.Profiler(output={str(small_disk)!r})
        with profiler:
            for i in range({SPANS}):
                with strobe.span("s"): pass
        print(profiler.recording.completeness().row(0))
        """
    )
    recording = program.open(small_disk)
    figures = recording.completeness().row(0, named=True)

    check_loss(figures, SPANS, "No space left on device")
    assert recording.spans().collect().height == figures["collected"]
    lost = f"{figures['dropped']} records could not be written and are lost"
    assert f"{lost} (No space left on device)" in program.said
    assert program.printed.strip() == str(recording.completeness().row(0))


def test_a_full_disk_is_emptied_again(program: Program, small_disk: Path) -> None:
    program.run(
        f"""
        import pathlib

        ballast = pathlib.Path({str(small_disk)!r}, "ballast")
        with strobe.Profiler(output={str(small_disk)!r}):
            with open(ballast, "wb", buffering=0) as file:
                try:
                    while True: file.write(bytes(4096))
                except OSError: pass
            for i in range(150_000):
                with strobe.span("while full"): pass
            ballast.unlink()
            for i in range(20_000):
                with strobe.span("afterwards"): pass
        """
    )
    recording = program.open(small_disk)

    check_loss(recording.completeness().row(0, named=True), 170_000, "No space left on device")
    assert count(recording.spans().collect())["afterwards"] == 20_000


def test_names_that_could_not_be_written_are_told(program: Program, small_disk: Path) -> None:
    program.run(
        f"""
        import pathlib

        ballast = pathlib.Path({str(small_disk)!r}, "ballast")
        with strobe.Profiler(output={str(small_disk)!r}):
            with strobe.span("known"): pass
            with open(ballast, "wb", buffering=0) as file:
                try:
                    while True: file.write(bytes(4096))
                except OSError: pass
            # Definitions fill the rest of their page; the long ones do not fit.
            for i in range(3):
                with strobe.span("x" * 9000): pass
            ballast.unlink()
            with strobe.span("x" * 9000): pass
        """
    )
    recording = program.open(small_disk)
    figures = recording.completeness().row(0, named=True)
    spans = recording.spans().collect()

    assert count(spans) == {"known": 1, "(name lost)": 3, "x" * 9000: 1}
    assert "3 names could not be written" in figures["note"]
    assert "No space left on device" in figures["note"]


def test_a_disk_that_is_full_at_start(program: Program, small_disk: Path) -> None:
    program.run(
        f"""
        import pathlib

        folder = pathlib.Path({str(small_disk)!r})
        with open(folder / "ballast", "wb", buffering=0) as file:
            try:
                while True: file.write(bytes(4096))
            except OSError: pass
        profiler = strobe.Profiler(output=folder)
        try: profiler.start()
        except strobe.CaptureError as error: print(error)
        with strobe.span("nobody records this"): pass
        print([path.name for path in folder.iterdir()])
        (folder / "ballast").unlink()
        with profiler:
            with strobe.span("s"): pass
        """
    )
    message, left = program.printed.splitlines()

    assert f"output={str(small_disk)!r}" in message
    assert "No space left on device" in message
    assert left == "['ballast']"
    assert count(program.spans(small_disk)) == {"s": 1}


@pytest.mark.parametrize("signal", ["SIG_IGN", "SIG_DFL"])
@pytest.mark.parametrize("limit_kb", [2048, 300])
def test_a_limit_on_the_size_of_files(program: Program, signal: str, limit_kb: int) -> None:
    # 2048: a ring (1036 kB) fits and the chunks reach the limit. 300: not even a ring fits.
    program.run(
        f"""
        import resource, signal

        signal.signal(signal.SIGXFSZ, signal.{signal})
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_kb} << 10, resource.RLIM_INFINITY))
        with strobe.Profiler(output=OUT):
            for i in range({SPANS}):
                with strobe.span("s"): pass
        """
    )
    figures = program.completeness()

    if limit_kb == 2048:
        check_loss(figures, SPANS, "File too large")
    else:
        assert figures["asked"] == SPANS
        assert figures["dropped"] > 0
        assert "private memory" in figures["note"]


def test_a_limit_on_the_size_of_files_with_many_threads(program: Program) -> None:
    program.run(
        """
        import resource, signal, threading

        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
        def work():
            for i in range(50_000):
                with strobe.span("s"): pass
        with strobe.Profiler(output=OUT):
            threads = [threading.Thread(target=work) for _ in range(4)]
            for t in threads: t.start()
            for t in threads: t.join()
        """
    )

    check_loss(program.completeness(), 200_000, "File too large")


def test_tables_without_room_leave_the_log_for_later(program: Program) -> None:
    """So many spans that columns go into files; of three million each is there afterwards."""
    program.run(
        """
        import sys

        sys.executable = ""  # no finalizer beside
        with strobe.Profiler(output=OUT):
            for i in range(3_000_000):
                with strobe.span("s"): pass
        """
    )
    printed = program.run(
        """
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        try: strobe.open(OUT)
        except strobe.FormatError as error: print(error)
        """
    )

    assert "File too large" in printed
    assert "the log stays: open it again where there is room" in printed
    assert program.completeness()["collected"] == 3_000_000


def test_a_path_that_cannot_be_written_is_refused_at_start(program: Program) -> None:
    (program.folder / "file").write_text("in the way")
    outputs = [str(program.folder / "file"), str(program.folder / "file/below"), "/proc/strobe"]
    program.run(
        f"""
        for output in {outputs!r}:
            try: strobe.Profiler(output=output).start()
            except strobe.CaptureError as error: print(error)
            with strobe.span("nobody records this"): pass
        """
    )
    lines = program.printed.splitlines()

    assert len(lines) == 3
    for output, line in zip(outputs, lines, strict=True):
        assert line.startswith(f"Profiler(output={output!r}): cannot be recorded into")
        assert line.endswith("choose a folder that can be written")
    assert (program.folder / "file").read_text() == "in the way"


def test_a_read_only_folder_is_refused_at_start(program: Program) -> None:
    # Root may write anywhere, so the program becomes nobody, who must be able to reach the folder.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        program.run(
            f"""
            profiler = strobe.Profiler(output={folder!r})
            if os.geteuid() == 0: os.setuid(65534)
            os.stat({folder!r})
            try: profiler.start()
            except strobe.CaptureError as error: print(error)
            """
        )

    assert f"output={folder!r}" in program.printed
    assert "Permission denied" in program.printed


def test_output_that_vanishes_is_lost_and_said_so(program: Program) -> None:
    program.run(
        """
        import shutil

        profiler = strobe.Profiler(output=OUT)
        profiler.start()
        for i in range(10_000):
            with strobe.span("before"): pass
        shutil.rmtree(OUT)
        for i in range(100_000):
            with strobe.span("after"): pass
        if (child := os.fork()) == 0:
            with strobe.span("child"): pass
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert profiler.stop() is None
        try: profiler.recording
        except strobe.FormatError as error: print(error)
        with profiler:
            with strobe.span("again"): pass
        """
    )

    assert "is lost" in program.said
    assert "nothing at this path" in program.printed
    assert count(program.spans()) == {"again": 1}


def test_a_log_that_vanishes_is_told(program: Program) -> None:
    program.run(
        """
        import pathlib, shutil

        with strobe.Profiler(output=OUT):
            with strobe.span("lost"): pass
            log, = pathlib.Path(OUT).glob("*/log")
            shutil.rmtree(log)
        """
    )
    figures = program.completeness()

    assert (figures["asked"], figures["collected"], figures["dropped"]) == (1, 0, 1)
    assert "log" in figures["note"]


def test_a_read_only_recording_can_be_opened(program: Program, tmp_path: Path) -> None:
    program.run(
        """
        strobe.Profiler(output=OUT).start()
        with strobe.span("s"): pass
        os._exit(0)
        """
    )
    recording = program.recordings()[0]
    if os.geteuid() != 0:
        pytest.skip("only root can mount it read-only")
    mount("--bind", recording, recording)
    try:
        mount("-o", "remount,ro,bind", recording)
        spans = program.spans()
    finally:
        subprocess.run(["umount", "--lazy", recording], check=True)

    assert count(spans) == {"s": 1}
    assert (recording / "log").is_dir()
    assert not (recording / "tables").exists()


def test_open_of_a_recording_on_a_full_disk(program: Program, small_disk: Path) -> None:
    program.run(
        f"""
        strobe.Profiler(output={str(small_disk)!r}).start()
        with strobe.span("s"): pass
        try:
            with open({str(small_disk / "ballast")!r}, "wb", buffering=0) as file:
                while True: file.write(bytes(4096))
        except OSError: pass
        os._exit(0)
        """
    )
    in_temporary = count(program.spans(small_disk))
    recording = next(small_disk.glob("*/strobe.json")).parent
    left = sorted(path.name for path in recording.iterdir() if not path.name.startswith("."))
    (small_disk / "ballast").unlink()

    assert in_temporary == {"s": 1}
    assert left == ["log", "strobe.json"]
    assert count(program.spans(small_disk)) == {"s": 1}
    assert (recording / "tables").is_dir()


def test_strobe_itself_is_not_stopped_by_a_full_temporary_folder(
    program: Program, small_disk: Path
) -> None:
    (small_disk / "ballast").write_bytes(bytes(3 << 20))
    spans = program.record("with strobe.span('s'): pass", env={"TMPDIR": str(small_disk)})

    assert count(spans) == {"s": 1}


def test_finalizing_needs_no_descriptor_of_the_program(program: Program) -> None:
    # Not one descriptor left at stop(): the log stays, and open() does the work.
    program.run(
        """
        import resource

        profiler = strobe.Profiler(output=OUT)
        profiler.start()
        with strobe.span("s"): pass
        held = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True: held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError: pass
        with strobe.span("t"): pass
        profiler.stop()
        """
    )

    assert count(strobe.open(program.output).spans().collect()) == {"s": 1, "t": 1}
