# SPDX-License-Identifier: Apache-2.0
"""A recording is data, never an instruction: whatever is in it, nothing outside of it is touched.

Recordings are sent to colleagues and opened from shared disks. Each test puts something hostile
into a real one, opens it, cleans it or hands it to the finalizer in a process of its own, and looks
at the files beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import strobe
from programs import Program, command, count


@pytest.fixture(autouse=True, scope="module")
def _without_usage() -> Iterator[None]:
    """Leave out the counters of the process: records are counted here, one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STROBE_USAGE", "0")
        yield


SPANS = 200
ID, OTHER_ID = "0123456789abcdef", "0123456789abcdee"
KILLED = "the program ended without stop(): the recording ends with its last record"
SECONDS = 120
"""After this, opening it hangs."""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped recording that nobody has finalized; who recorded it makes no difference here."""
    program = Program("python", tmp_path_factory.mktemp("left"))
    program.run(f"""
        sys.executable = ""             # no finalizer: the log stays
        with strobe.Profiler(output=OUT):
            for i in range({SPANS}):
                with strobe.span("s"): pass
    """)
    return program.recordings()[0]


@pytest.fixture
def recording(left: Path, tmp_path: Path) -> Path:
    """A copy of it, as a colleague sends it."""
    return Path(shutil.copytree(left, tmp_path / "received" / "recording"))


@pytest.fixture
def complete(recording: Path) -> Path:
    """The same with its tables."""
    _ = strobe.open(recording).directory
    assert (recording / "tables").is_dir()
    return recording


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder that has nothing to do with it, and must stay as it is."""
    folder = tmp_path / "home"
    (folder / "log").mkdir(parents=True)
    (folder / "tables").mkdir()
    (folder / "diary.txt").write_text("dear diary")
    (folder / "log" / "diary.txt").write_text("dear diary")
    yield folder
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    assert found == {"diary.txt", "log", "log/diary.txt", "tables"}
    assert (folder / "diary.txt").read_text() == "dear diary"
    assert (folder / "log" / "diary.txt").read_text() == "dear diary"


def edit(recording: Path, **changes: Any) -> None:
    path = recording / "strobe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def prefix_of(recording: Path) -> str:
    (path,) = (recording / "log").glob("*.definitions")
    return path.stem


def look(recording: Path) -> dict[str, Any]:
    """Open it in a process of its own, which must end; return spans, note, or the error."""
    source = """
        import json, sys, strobe
        try:
            recording = strobe.open(sys.argv[1])
            note = recording.completeness()["note"][0]
            found = {"spans": recording.spans().collect().height, "note": note or ""}
        except strobe.FormatError as error:
            found = {"error": str(error)}
        print(json.dumps(found))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), recording],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def finalize_it(recording: Path) -> None:
    """Hand it to a finalizer, which is another process, and wait for the end of it."""
    source = """
        import sys
        from pathlib import Path
        from strobe.cli._hidden import carry_out
        from strobe.finalize.process import Order
        carry_out(Order(Path(sys.argv[1]), []))
    """
    arguments = [sys.executable, "-c", textwrap.dedent(source), recording]
    subprocess.run(arguments, check=True, timeout=SECONDS)


def clean_it(recording: Path) -> None:
    status, _, _ = command("clean", recording.parent, "--older-than", "0", "--yes")
    assert status == 0


WAYS = pytest.mark.parametrize(
    "use", [look, finalize_it, clean_it], ids=["open", "finalizer", "clean"]
)
Use = Callable[[Path], object]


@WAYS
def test_a_ring_that_is_a_link_costs_nobody_a_file(recording: Path, victim: Path, use: Use) -> None:
    number = f"{prefix_of(recording)}.7.ring"
    for name in ("x.ring", number):
        (recording / "log" / name).symlink_to(victim / "diary.txt")

    use(recording)


@WAYS
def test_a_path_in_links_costs_nobody_a_folder(recording: Path, victim: Path, use: Use) -> None:
    (recording / "log" / "links" / ID).write_text(str(victim / "log"))
    relative = os.path.relpath(victim / "log", recording)
    (recording / "log" / "links" / OTHER_ID).write_text(relative)
    (recording / "log" / "refs" / ID).write_text(str(victim))

    use(recording)


@WAYS
@pytest.mark.parametrize("how", ["absolute", "relative", "itself", "no path", "escape"])
def test_the_log_that_the_manifest_names_costs_nobody_a_folder(
    recording: Path, victim: Path, use: Use, how: str
) -> None:
    names = {
        "absolute": str(victim / "log"),
        "relative": os.path.relpath(victim / "log", recording),
        "itself": ".",
        "no path": "\0",
        "escape": "log/../../../home/log",
    }
    edit(recording, log=names[how])

    use(recording)


@WAYS
def test_an_id_that_is_a_path_is_no_id(recording: Path, victim: Path, use: Use) -> None:
    target = os.path.relpath(victim / "diary.txt", recording / "log" / "refs")
    edit(recording, id=target, log="../recording/log")

    use(recording)


def test_an_id_that_is_a_path_is_refused(recording: Path) -> None:
    edit(recording, id="../../../etc/passwd")

    assert "is not the id of a recording" in look(recording)["error"]


@WAYS
@pytest.mark.parametrize("name", ["log", "tables", "log/refs", "log/links"])
def test_a_folder_that_is_a_link_costs_nobody_a_folder(
    recording: Path, victim: Path, use: Use, name: str
) -> None:
    place = recording / name
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to(victim / "log")

    use(recording)


@WAYS
@pytest.mark.parametrize("where", ["links", "manifest"])
def test_references_behind_a_link_cost_nobody_a_file(
    recording: Path, victim: Path, use: Use, where: str
) -> None:
    """A log of the attacker's own, whose refs are the victim's folder."""
    other = recording / "sub" if where == "links" else recording.parent / "other"
    (other / "log").mkdir(parents=True)
    (other / "log" / "refs").symlink_to(victim)
    (victim / ID).write_text("dear diary")
    if where == "links":
        (recording / "log" / "links" / ID).write_text("sub/log")
    else:
        edit(recording, id=ID, log="../other/log")

    use(recording)

    assert (victim / ID).read_text() == "dear diary"
    (victim / ID).unlink()


@WAYS
def test_a_fifo_among_what_is_left_of_tables_stops_nobody(recording: Path, use: Use) -> None:
    os.mkfifo(recording / "tables.part-1")

    use(recording)


@WAYS
def test_a_lock_that_is_a_link_makes_no_file(recording: Path, victim: Path, use: Use) -> None:
    (recording / ".lock").unlink(missing_ok=True)
    (recording / ".lock").symlink_to(victim / "new")

    use(recording)


@WAYS
def test_a_name_that_the_finalizer_writes_may_be_a_link(
    recording: Path, victim: Path, use: Use
) -> None:
    (recording / "log" / "kineto-1.facts").write_text("{")  # so that it fails
    for name in ("finalizer.log", "finalizer.part", "tables.part-0"):
        (recording / name).symlink_to(victim / "diary.txt")

    try:
        use(recording)
    except (AssertionError, json.JSONDecodeError):
        assert use is look  # what a damaged trace costs is another matter


def test_a_ring_that_is_a_link_is_told(recording: Path, victim: Path) -> None:
    ring = recording / "log" / f"{prefix_of(recording)}.0.ring"
    ring.rename(victim.parent / "ring")
    ring.symlink_to(victim.parent / "ring")

    found = look(recording)

    assert found["spans"] == 0
    assert f"{ring.name}: not opened, because it is a symbolic link" in found["note"]
    assert not (recording / "tables").exists()
    ring.unlink()
    (victim.parent / "ring").rename(ring)  # mended
    assert look(recording) == {"spans": SPANS, "note": ""}


@pytest.mark.parametrize("kind", ["link", "FIFO", "socket", "device"])
@pytest.mark.parametrize(
    "name",
    [
        "strobe.json",
        "tables",
        "tables/spans.parquet",
        "tables/completeness.parquet",
        ".lock",
        "finalizer.log",
    ],
)
def test_what_is_no_regular_file_is_not_opened(
    complete: Path, victim: Path, name: str, kind: str
) -> None:
    put(complete / name, kind, victim)

    found = look(complete)

    if name in (".lock", "finalizer.log"):
        assert found == {"spans": SPANS, "note": ""}
    else:
        assert "not opened, because it is a" in found["error"]
        assert name.rpartition("/")[2] in found["error"]


@pytest.mark.parametrize("kind", ["link", "FIFO", "socket", "device"])
@pytest.mark.parametrize(
    "name",
    [
        *("log", "log/PREFIX.0.ring", "log/PREFIX.chunks", "log/PREFIX.definitions"),
        *("log/PREFIX.8.ring", "log/x.ring", "log/new.chunks", "log/alive-1-2.json"),
        *("log/links/0123456789abcdef", "log/refs/0123456789abcdef", "log/trace.facts"),
    ],
)
def test_what_is_no_regular_file_in_a_log_is_not_opened(
    recording: Path, victim: Path, name: str, kind: str
) -> None:
    place = recording / name.replace("PREFIX", prefix_of(recording))
    put(place, kind, victim)

    found = look(recording)

    whole = not any(part in name for part in (".0.ring", "PREFIX.chunks")) and name != "log"
    assert found["spans"] == (SPANS if whole or "chunks" in name else 0)
    if name != f"log/refs/{ID}":
        assert f"{place.name}: not opened, because it is a" in found["note"]
        assert not (recording / "tables").exists()


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_trace_of_a_framework_is_a_file_of_the_log(
    recording: Path, victim: Path, kind: str
) -> None:
    facts = {"source": "paddle", "reader": "paddle", "notes": [], "anchors": [], "marks_ns": []}
    (recording / "log" / "trace.facts").write_text(json.dumps(facts))
    put(recording / "log" / "trace", kind, victim)

    found = look(recording)

    assert found["spans"] == SPANS
    assert "trace: not opened" in found["note"]


def put(place: Path, kind: str, victim: Path) -> None:
    """Put something that is no regular file to this place."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if kind == "link":
        place.symlink_to(victim / "diary.txt")
    elif kind == "FIFO":
        os.mkfifo(place)
    elif kind == "socket":
        folder = os.open(place.parent, os.O_RDONLY)
        try:  # the path of a socket must be short
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{folder}/{place.name}")
        finally:
            os.close(folder)
    else:
        try:
            os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero has no end
        except PermissionError:
            pytest.skip("only root can make a device")


def test_the_path_that_the_user_gives_may_be_a_link(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(recording)
    (tmp_path / "all").symlink_to(recording.parent)

    assert look(tmp_path / "latest") == {"spans": SPANS, "note": ""}
    assert look(tmp_path / "all") == {"spans": SPANS, "note": ""}


def test_exports_in_a_manifest_are_not_carried_out(recording: Path, victim: Path) -> None:
    edit(recording, exports=[{"format": "chrome", "directory": str(victim)}])

    finalize_it(recording)

    assert (recording / "tables").is_dir()


def test_a_crafted_recording_does_not_take_the_ring_of_another(
    program: Program, tmp_path: Path
) -> None:
    """It has the id and the files of one whose ring lies in the temporary folder."""
    original = record_with_ring_elsewhere(program, tmp_path, killed=True)
    (ring,) = (tmp_path / "tmp").glob("strobe-*.ring")
    copy = Path(shutil.copytree(original, tmp_path / "copy"))

    with temporary_folder(tmp_path / "tmp"):
        assert look(copy) == {"spans": SPANS, "note": KILLED}
        assert (copy / "tables").is_dir()
        assert not (copy / "log").exists()
        assert ring.exists()
        assert look(original) == {"spans": SPANS, "note": KILLED}
    assert not ring.exists()


def test_a_ring_of_somebody_else_is_not_read(program: Program, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    recording = record_with_ring_elsewhere(program, tmp_path, killed=True)
    (ring,) = (tmp_path / "tmp").glob("strobe-*.ring")
    os.chown(ring, 12345, 12345)

    with temporary_folder(tmp_path / "tmp"):
        found = look(recording)

    assert found["spans"] == 0
    assert f"is missing: the recorder put it into {str(tmp_path / 'tmp')!r}" in found["note"]
    assert ring.exists()
    assert not (recording / "tables").exists()


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
def test_a_ring_that_is_not_found_costs_no_log(
    program: Program, tmp_path: Path, killed: bool
) -> None:
    recording = record_with_ring_elsewhere(program, tmp_path, killed=killed)
    ring = next((tmp_path / "tmp").glob("strobe-*.ring"))
    before = sorted(path.name for path in (recording / "log").iterdir())

    found = look(recording)  # in an environment where nothing says where it is

    assert found["spans"] == (0 if killed else SPANS)  # stop() leaves nothing in such a ring alone
    assert "ring 0 of" in found["note"]
    assert sorted(path.name for path in (recording / "log").iterdir()) == before
    with temporary_folder(tmp_path / "tmp"):
        assert look(recording) == {"spans": SPANS, "note": KILLED if killed else ""}
    assert not ring.exists()


def record_with_ring_elsewhere(program: Program, tmp_path: Path, *, killed: bool) -> Path:
    """Record where a ring file does not fit, so that it is in the temporary folder."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    (tmp_path / "tmp").mkdir()
    disk = tmp_path / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk], check=True)
    try:
        program.run(
            f"""
            sys.executable = ""
            with strobe.Profiler(output={str(disk)!r}):
                for i in range({SPANS}):
                    with strobe.span("s"): pass
                if {killed}: os._exit(0)
            """,
            env={"TMPDIR": str(tmp_path / "tmp")},
        )
        (recording,) = (path.parent for path in disk.glob("*/strobe.json"))
        log = recording / "log"
        assert not list(log.glob("*.ring"))
        assert not [path for path in log.rglob("*") if path.is_symlink()]
        # Moved to where there is room for tables; the ring is that of the log that it was.
        moved = Path(shutil.copytree(recording, tmp_path / "moved"))
        adopt_rings(tmp_path / "tmp", moved / "log")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
    return moved


def adopt_rings(folder: Path, log: Path) -> None:
    """Make the rings those of this directory, as they would be had it not been copied."""
    status = log.stat()
    for ring in folder.glob("strobe-*.ring"):
        with ring.open("r+b") as file:
            file.seek(24)
            file.write(status.st_dev.to_bytes(8, "little") + status.st_ino.to_bytes(8, "little"))


class temporary_folder:
    """Let processes that are started find what lies in this temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = os.environ.get("TMPDIR")

    def __enter__(self) -> None:
        os.environ["TMPDIR"] = str(self._folder)

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = self._before


def test_a_temporary_folder_may_be_a_link(program: Program, tmp_path: Path) -> None:
    recording = record_with_ring_elsewhere(program, tmp_path, killed=True)
    (tmp_path / "link").symlink_to(tmp_path / "tmp")

    with temporary_folder(tmp_path / "link"):
        assert look(recording) == {"spans": SPANS, "note": KILLED}


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_runtime_folder_that_others_may_enter_is_not_used(program: Program, mode: int) -> None:
    runtime = program.folder / "tmp" / f"strobe-{os.getuid()}"
    runtime.mkdir(parents=True)
    runtime.chmod(mode)

    program.run(
        "with strobe.Profiler(output=OUT), strobe.span('s'): pass",
        env={"TMPDIR": str(program.folder / "tmp")},
    )

    assert "is open to other users; chmod 700 it or remove it" in program.said
    assert list(runtime.iterdir()) == []
    assert count(program.spans()) == {"s": 1}
