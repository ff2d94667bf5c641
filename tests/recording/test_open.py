# SPDX-License-Identifier: Apache-2.0
"""open() of recordings that were killed, moved, damaged, or made by a later strobe."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import strobe
from programs import Program, command, count
from strobe.record.source import announce_held
from strobe.store import manifest


@pytest.fixture(autouse=True, scope="module")
def _without_usage() -> Iterator[None]:
    """Leave out the counters of the process: records are counted here, one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STROBE_USAGE", "0")
        yield


SPANS = 100_000
RECORD_BYTES = 32
CHUNK_HEADER = struct.Struct("<IIQIIQ")  # magic, ring, first, count, crc, reserved


@pytest.fixture(scope="module")
def left(recorder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped recording of 100 000 spans that nobody has finalized."""
    program = Program(recorder, tmp_path_factory.mktemp("left"))
    program.run(f"""
        sys.executable = ""             # no finalizer: the log stays
        with strobe.Profiler(output=OUT):
            for i in range({SPANS}):
                with strobe.span("s"): pass
            open_span = strobe.span("open").begin()
    """)
    return program.recordings()[0]


@pytest.fixture
def recording(left: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(left, tmp_path / "copy"))


@pytest.fixture
def killed(left: Path, recording: Path) -> Path:
    """The same without what stop() added, as if it had been killed."""
    path = recording / "strobe.json"
    content = json.loads(path.read_text())
    content.update(stop=None, stats={}, pid=2**22, process_start=1)
    path.write_text(json.dumps(content))
    return recording


def file_of(recording: Path, ending: str) -> Path:
    [path] = (recording / "log").glob(f"*.{ending}")
    return path


def chunks(path: Path) -> Iterator[tuple[int, int]]:
    """Offset and number of records of each chunk."""
    data = path.read_bytes()
    offset = 0
    while offset < len(data):
        records = CHUNK_HEADER.unpack_from(data, offset)[3]
        yield offset, records
        offset += CHUNK_HEADER.size + records * RECORD_BYTES


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def figures_of(program: Program, recording: Path) -> tuple[int, int, str]:
    figures = program.completeness(recording)
    return figures["collected"], figures["dropped"], figures["note"] or ""


def test_the_copy_is_whole(program: Program, recording: Path) -> None:
    assert figures_of(program, recording) == (SPANS + 1, 0, "")
    assert count(program.spans(recording)) == {"s": SPANS, "open": 1}


def test_a_killed_one_is_recovered(program: Program, killed: Path) -> None:
    collected, dropped, note = figures_of(program, killed)

    assert (collected, dropped) == (SPANS + 1, 0)
    assert note == "the program ended without stop(): the recording ends with its last record"
    assert not (killed / "log").exists()


def note_of_framework(recording: Path) -> str | None:
    announce_held(recording / "log", "paddle")
    notes = dict(strobe.open(recording).completeness().select("source", "note").iter_rows())
    return notes.get("paddle")


def test_what_a_framework_held_is_lost_with_the_program(killed: Path) -> None:
    assert "is lost" in (note_of_framework(killed) or "")


def test_what_a_framework_held_was_taken_from_it_at_the_stop(recording: Path) -> None:
    assert note_of_framework(recording) is None


def test_opening_twice_gives_the_same(program: Program, recording: Path) -> None:
    first = program.spans(recording)
    written = (recording / "tables" / "spans.parquet").stat().st_mtime_ns

    assert program.spans(recording).equals(first)
    assert (recording / "tables" / "spans.parquet").stat().st_mtime_ns == written


def test_several_processes_may_open_at_once(program: Program, recording: Path) -> None:
    source = "import strobe, sys; print(strobe.open(sys.argv[1]).spans().collect().height)"
    command = [sys.executable, "-c", source, str(recording)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    counted = [process.communicate()[0] for process in processes]

    assert counted == [f"{SPANS + 1}\n"] * 4
    assert sorted(path.name for path in recording.iterdir() if path.name[0] != ".") == [
        "strobe.json",
        "tables",
    ]


def test_a_finalizer_that_was_killed_is_done_again(program: Program, recording: Path) -> None:
    abandoned = recording / "tables.part-0123"
    abandoned.mkdir()
    (abandoned / "spans.parquet").write_bytes(b"PAR1 half of it")

    assert figures_of(program, recording) == (SPANS + 1, 0, "")
    assert not abandoned.exists()


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("byte", ["magic", "count", "checksum", "record"])
def test_a_damaged_chunk_is_counted_and_the_rest_is_read(
    program: Program, recording: Path, place: int, byte: str
) -> None:
    path = file_of(recording, "chunks")
    offset, lost = list(chunks(path))[place]
    within = {"magic": 0, "count": 18, "checksum": 21, "record": CHUNK_HEADER.size + 777}
    flip(path, offset + within[byte])

    collected, dropped, note = figures_of(program, recording)

    assert (collected, dropped) == (SPANS + 1 - lost, lost)
    assert f"{path.name}: no whole chunk at byte {offset}" in note


def test_two_damaged_chunks(program: Program, recording: Path) -> None:
    path = file_of(recording, "chunks")
    (first, lost_first), (second, lost_second), *_ = chunks(path)
    flip(path, first + 100)
    flip(path, second + 100)

    collected, dropped, _ = figures_of(program, recording)

    assert (collected, dropped) == (SPANS + 1 - lost_first - lost_second, lost_first + lost_second)


@pytest.mark.parametrize("keep", ["nothing", "half a header", "one chunk", "one and a half"])
def test_a_chunk_file_that_was_cut_off(program: Program, recording: Path, keep: str) -> None:
    path = file_of(recording, "chunks")
    all_chunks = list(chunks(path))
    size, kept = {
        "nothing": (0, 0),
        "half a header": (16, 0),
        "one chunk": (all_chunks[1][0], all_chunks[0][1]),
        "one and a half": (all_chunks[1][0] + 5000, all_chunks[0][1]),
    }[keep]
    os.truncate(path, size)
    lost = sum(records for _, records in all_chunks) - kept

    collected, dropped, note = figures_of(program, recording)

    assert (collected, dropped) == (SPANS + 1 - lost, lost)
    assert ("no whole chunk" if keep == "one and a half" else "records are missing") in note


def test_a_chunk_file_that_is_gone(program: Program, recording: Path) -> None:
    path = file_of(recording, "chunks")
    lost = sum(records for _, records in chunks(path))
    path.unlink()

    collected, dropped, note = figures_of(program, recording)

    assert (collected, dropped) == (SPANS + 1 - lost, lost)
    assert f"{lost} records are missing" in note


@pytest.mark.parametrize("size", [100, 4096, 500_000])
def test_a_ring_that_was_cut_off(program: Program, recording: Path, size: int) -> None:
    in_chunks = sum(records for _, records in chunks(file_of(recording, "chunks")))
    path = file_of(recording, "ring")
    os.truncate(path, size)

    collected, dropped, note = figures_of(program, recording)

    assert (collected, dropped) == (in_chunks, SPANS - in_chunks)
    assert f"{path.name}: cut off at byte {size}" in note


def test_a_ring_with_a_damaged_header(program: Program, recording: Path) -> None:
    in_chunks = sum(records for _, records in chunks(file_of(recording, "chunks")))
    path = file_of(recording, "ring")
    flip(path, 64 + 5)  # its head, now thousands of millions of records away

    collected, dropped, note = figures_of(program, recording)

    assert (collected, dropped) == (in_chunks, SPANS - in_chunks)
    assert f"{path.name}: its header is damaged" in note


def test_files_that_were_not_finished_when_the_program_was_killed(
    program: Program, killed: Path
) -> None:
    prefix = file_of(killed, "definitions").stem
    (killed / "log" / f"{prefix}.7.ring").write_bytes(b"")
    (killed / "log" / f"{prefix}.8.ring").write_bytes(bytes(1_060_864))
    (killed / "log" / "host-1-2-child.chunks").write_bytes(b"")

    collected, dropped, note = figures_of(program, killed)

    assert (collected, dropped) == (SPANS + 1, 0)
    assert note == "the program ended without stop(): the recording ends with its last record"


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        *(("ring", how) for how in ("gone", "empty", "cut off", "folder")),
        *(("chunks", how) for how in ("gone", "empty", "cut off", "folder")),
        *(("definitions", how) for how in ("gone", "empty", "cut off", "folder")),
    ],
)
def test_nothing_is_written_over_a_file_that_is_missing(
    program: Program, killed: Path, tmp_path: Path, ending: str, how: str
) -> None:
    """A copy may have been interrupted, or a file left behind: it may be found again."""
    path = file_of(killed, ending)
    kept = shutil.copyfile(path, tmp_path / "kept")
    path.unlink()
    if how == "empty":
        path.touch()
    elif how == "cut off":
        path.write_bytes(kept.read_bytes()[: kept.stat().st_size // 2])
    elif how == "folder":
        path.mkdir()

    note = figures_of(program, killed)[2]

    lost_names = ending == "definitions" and how in ("empty", "cut off")
    assert ("have lost their names" if lost_names else f"{path.name}: ") in note
    assert (killed / "log").is_dir()
    assert not (killed / "tables").exists()
    if how == "folder":
        path.rmdir()
    shutil.copyfile(kept, path)
    assert figures_of(program, killed)[:2] == (SPANS + 1, 0)
    assert not (killed / "log").exists()


def test_definitions_that_are_gone_cost_only_the_names(program: Program, recording: Path) -> None:
    path = file_of(recording, "definitions")
    path.unlink()

    collected, dropped, note = figures_of(program, recording)

    assert (collected, dropped) == (SPANS + 1, 0)
    assert count(program.spans(recording)) == {"(name lost)": SPANS + 1}
    assert f"{path.name}: not there" in note
    assert f"{SPANS + 1} records have lost their names" in note


def test_definitions_that_were_cut_off_or_damaged(program: Program, recording: Path) -> None:
    path = file_of(recording, "definitions")
    flip(path, path.read_bytes().index(b"open"))

    collected, dropped, note = figures_of(program, recording)

    assert (collected, dropped) == (SPANS + 1, 0)
    assert count(program.spans(recording)) == {"s": SPANS, "(name lost)": 1}
    assert f"{path.name}: no whole definition at byte" in note
    assert "1 records have lost their names" in note


def test_a_newer_format_is_refused_with_the_version_to_install(
    program: Program, recording: Path
) -> None:
    path = recording / "strobe.json"
    content = json.loads(path.read_text()) | {"format": 99, "strobe": "7.8.9"}
    path.write_text(json.dumps(content))

    with pytest.raises(strobe.FormatError, match=r"format 99 is newer.*install strobe 7\.8\.9"):
        strobe.open(recording)

    assert (recording / "log").is_dir()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": "1"}', "[" * 200_000]
)
def test_a_damaged_manifest_is_a_format_error(program: Program, recording: Path, text: str) -> None:
    (recording / "strobe.json").write_text(text)

    with pytest.raises(strobe.FormatError, match=r"strobe\.json"):
        strobe.open(recording)


@pytest.mark.parametrize(
    "changes",
    [
        *({name: value} for name in ("exports", "missing", "sources") for value in (5, ["x"])),
        *({"metadata": 7}, {"stats": "x"}, {"stats": {"records": "x"}}, {"wants": []}, {"log": 1}),
        *({"span_cost_ns": "x"}, {"pid": True}, {"sources": {"torch": {}}}, {"unheard_of": 1}),
        *({"start": None}, {"stop": {}}, {"stop": "x"}, {"start": {"wall_ns": 1}}),
    ],
    ids=str,
)
def test_a_manifest_with_a_wrong_value_names_it(
    program: Program, recording: Path, changes: dict[str, object]
) -> None:
    path = recording / "strobe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    with pytest.raises(strobe.FormatError, match=rf"strobe\.json', {next(iter(changes))}"):
        strobe.open(recording)


@pytest.mark.parametrize("value", ["x", None, 10**30, True, 1.5])
def test_a_neighbour_with_a_wrong_time_does_not_matter(
    program: Program, recording: Path, tmp_path: Path, value: object
) -> None:
    bad = Path(shutil.copytree(recording, tmp_path / "bad"))
    content = json.loads((bad / "strobe.json").read_text())
    content["start"]["wall_ns"] = value
    (bad / "strobe.json").write_text(json.dumps(content))

    assert strobe.open(tmp_path).path == recording
    for words in (["info"], ["summary"], ["clean", "--yes"]):
        assert command(words[0], tmp_path, *words[1:])[0] == 0
    with pytest.raises(strobe.FormatError, match=r"start\.wall_ns: .* is not a time"):
        strobe.open(bad)


def test_a_folder_with_one_recording_is_that_recording(program: Program, recording: Path) -> None:
    opened = strobe.open(recording.parent)

    assert opened.path == recording
    assert strobe.open(str(recording)).path == recording


def test_a_folder_without_a_recording_says_so(
    program: Program, recording: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(strobe.FormatError, match="neither a recording nor a folder that holds one"):
        strobe.open(tmp_path / "empty")
    with pytest.raises(strobe.FormatError, match="not of a format that strobe reads"):
        strobe.open(recording / "strobe.json")


def begin_later(recording: Path, seconds: float, **changes: object) -> None:
    path = recording / "strobe.json"
    content = json.loads(path.read_text()) | changes
    content["start"]["wall_ns"] += int(seconds * 1e9)
    path.write_text(json.dumps(content))


def test_of_several_in_a_folder_the_newest_is_opened_and_told(
    program: Program, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        begin_later(Path(shutil.copytree(recording, tmp_path / f"a{number}")), number + 1)

    assert strobe.open(tmp_path).path == tmp_path / "a2"

    assert capsys.readouterr().err == (
        f"strobe: 4 recordings in {str(tmp_path)!r}: opening the newest, 'a2'; name another one to "
        "open it, or count back with run=-2 or --run -2 ('strobe info' lists them)\n"
    )
    assert strobe.open(tmp_path / "a1").path == tmp_path / "a1"
    assert capsys.readouterr().err == ""


def test_one_that_is_being_recorded_is_not_the_newest(
    program: Program, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"pid": os.getpid(), "process_start": manifest.process_start(os.getpid())}
    running = Path(shutil.copytree(recording, tmp_path / "running"))
    begin_later(running, 1, stop=None, boot=manifest.boot_id(), **own)

    assert strobe.open(tmp_path).path == recording
    assert "opening the newest that has ended, 'copy'" in capsys.readouterr().err
    shutil.rmtree(recording)
    shutil.copytree(running, tmp_path / "other")
    with pytest.raises(strobe.StateError, match="is still recording into it"):
        strobe.open(tmp_path)


def test_links_in_a_folder_are_not_recordings(
    program: Program, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latest").symlink_to(recording)

    assert strobe.open(tmp_path).path == recording
    assert capsys.readouterr().err == ""


def test_a_recording_that_was_moved_is_opened_where_it_is(program: Program, left: Path) -> None:
    moved = Path(shutil.copytree(left, program.folder / "elsewhere" / "new name"))

    assert figures_of(program, moved) == (SPANS + 1, 0, "")


def test_a_table_that_is_missing_is_named(program: Program, recording: Path) -> None:
    opened = program.open(recording)
    (recording / "tables" / "counters.parquet").unlink()

    with pytest.raises(strobe.FormatError, match=r"counters\.parquet.*missing"):
        opened.counters()
