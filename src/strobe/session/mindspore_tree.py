# SPDX-License-Identifier: Apache-2.0
"""MindSpore's trees: where a recording lies in one, and the files that are made of it.

<output>/<worker>_<time>_ascend_ms/FRAMEWORK/<recording>    strobe.mindspore.profile
<output>/profiler/FRAMEWORK/<recording>                     strobe.mindspore.Profiler, one card
<output>/rank_<n>/profiler/FRAMEWORK/<recording>            the same, several cards

A run that finds such a folder taken makes one with a number: profiler_2.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from strobe._version import __version__
from strobe.errors import CaptureError, FormatError, StateError, UsageError
from strobe.record.ranks import Place
from strobe.record.schedule import as_int
from strobe.session.round import Destination
from strobe.store import files, manifest, places, references
from strobe.store.tables import Tables

if TYPE_CHECKING:
    from strobe.reports.mindspore_tree.run import Run

FORMAT = "mindspore"
RAW = "FRAMEWORK"
METADATA = "mindspore_metadata"
"""The key of the recording's metadata that holds what the user added."""

RESULTS = "ASCEND_PROFILER_OUTPUT"
DONE = "tree.json"
"""In the recording: the files of its own tree were written."""

OWNER = ".owner"
"""In the raw folder of a tree that is not around its recording: its name is that one's id."""

# Options of strobe.Profiler by other names.
_PARAMETERS = {"with_flops": "aic_metrics"}

Kind = Literal["profile", "profiler"]


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What the manifest says of the tree that is to be made of a recording."""

    kind: Kind
    parameters: dict[str, Any]
    missing: dict[str, str] = field(default_factory=dict)
    """What the interface was asked for and cannot be had: parameter to reason."""
    keep_log: bool = False
    """Whether the raw log is to stay when the tables have been written."""
    format: str = FORMAT


def as_folder(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path of a folder that a user named; ~ is their home."""
    folder = Path(path)
    with contextlib.suppress(RuntimeError):  # of a user whom nobody knows: a name like others
        folder = folder.expanduser()
    return folder.absolute()


def place_profile(folder: Path, worker: str, declaration: Declaration, place: Place) -> Destination:
    """Make a new <worker>_<time>_ascend_ms in the folder, for one round of `profile`."""
    now = datetime.datetime.now(datetime.timezone.utc)
    for later in itertools.count():
        moment = now + datetime.timedelta(milliseconds=later)
        root = folder / f"{worker}_{os.getpid()}_{_stamp(moment)}_ascend_ms"
        if _claim(root):
            return _destination(root, declaration, place)
    raise AssertionError


def place_profiler(output: Path, declaration: Declaration, place: Place) -> Destination:
    """Make a new folder `profiler`, for one round of `Profiler`."""
    root = _claim_numbered(_rank_folder(output, place.rank, place.world_size))
    return _destination(root, declaration, place)


def _destination(root: Path, declaration: Declaration, place: Place) -> Destination:
    name = f"op_range_{place.rank or 0}-{os.getpid()}-{manifest.new_id()[:8]}"
    return Destination(path=root / RAW / name, exports=[asdict(declaration)])


def _claim(root: Path) -> bool:
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        root.mkdir()
    except FileExistsError:
        return False
    return True


def _claim_numbered(folder: Path) -> Path:
    for number in itertools.count(1):
        root = folder / ("profiler" if number == 1 else f"profiler_{number}")
        if _claim(root):
            return root
    raise AssertionError


def _rank_folder(output: Path, rank: int | None, world_size: int | None) -> Path:
    """Return where the folder `profiler` of a rank lies: on a single card in the output itself."""
    several = bool(rank) if world_size is None else world_size > 1
    return output / f"rank_{rank or 0}" if several else output


def _stamp(moment: datetime.datetime) -> str:
    return moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"


def check_steps(step_list: object) -> list[int] | None:
    """Return the steps to analyse, in order; raises TypeError or UsageError."""
    if step_list is None:
        return None
    given = step_list if isinstance(step_list, (list, tuple, range)) else [None]
    numbers = sorted(number for each in given if (number := as_int(each)) is not None)
    if len(numbers) < len(given):
        message = f"step_list={step_list!r}: must be a list of integers, or None"
        raise TypeError(message)
    if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        message = f"step_list={list(given)!r}: must be consecutive integers, as in [2, 3, 4]"
        raise UsageError(message)
    if numbers[0] < 1:
        message = f"step_list={list(given)!r}: steps are counted from 1"
        raise UsageError(message)
    return numbers


def complete(recording: Path) -> None:
    """Make the files of a recording unless they have been made, as asked for by a profiler."""
    if recording.is_dir() and not (recording / DONE).exists():
        analyse_recording(recording, data_simplification=simplifies(recording), again=False)


def simplifies(recording: Path) -> bool:
    """Say whether its profiler wanted the raw log to go."""
    declared = read_declaration(recording, manifest.read(recording))
    return bool(declared.parameters.get("data_simplification", True))


def import_analysis() -> None:
    """Import what analyse_recording() takes; where that cannot be, it is what will say so."""
    with contextlib.suppress(ImportError):
        import strobe.finalize.build
        import strobe.reports.mindspore_tree.files  # noqa: F401


def analyse_recording(
    recording: Path,
    *,
    pretty: bool = False,
    step_list: Sequence[int] | None = None,
    data_simplification: bool = True,
    root: Path | None = None,
    again: bool = True,
) -> Path:
    """Make the files of a recording in its tree, or in the folder `root`, and return that tree.

    `again=False`: only if nobody else has.
    Raises StateError while its program records, UsageError for steps that it does not have, and
    FormatError for what was not recorded by strobe.mindspore.
    """
    from strobe.finalize.run import finalize
    from strobe.reports.mindspore_tree.files import Tree, write_tree
    from strobe.reports.mindspore_tree.info import Facts

    began_ns = time.time_ns()
    if recording.is_symlink():  # the one that the user gave
        recording = recording.resolve()
    content = manifest.read(recording)
    declared = read_declaration(recording, content)
    _refuse_running(recording, content)
    if root is None and recording.parent.name != RAW:
        reason = f"not in a folder named {RAW}, so there is no tree to write its files into"
        raise FormatError(recording, "tree", reason)
    if not places.is_finalized(recording) and references.find_log(recording, content) is None:
        raise FormatError(recording, "recording", "its tables and its log are gone")
    try:
        tables = Tables(finalize(recording, keep_log=not data_simplification))
    except OSError as error:
        reason = f"no tables can be made of it ({error.strerror or error})"
        raise FormatError(recording, "log", reason) from error
    with places.locked(recording):
        if not again and (recording / DONE).exists():
            return recording.parent.parent
        run = _gather(content, declared, tables, pretty=pretty, step_list=step_list)
        is_its_own = root is None
        root = root or _find_root(recording, content.id, declared, run)
        started = datetime.datetime.fromtimestamp(
            content.start.wall_ns / 1e9, datetime.timezone.utc
        )
        results = root
        if declared.kind == "profiler":
            results = root / f"rank-{run.rank}_{_stamp(started)}_ascend_ms"
        facts = Facts(
            strobe=__version__,
            started_ns=content.start.wall_ns,
            stopped_ns=content.stop.wall_ns if content.stop else 0,
            analysed_from_ns=began_ns,
            metadata=_read_metadata(recording, content),
        )
        _refuse_links(recording, root / RAW, results, results / RESULTS)
        try:
            write_tree(run, Tree(kind=declared.kind, root=root, results=results), facts)
        except OSError as error:
            message = f"{str(root)!r} cannot be written ({error.strerror or error})"
            raise CaptureError(message) from error
        if is_its_own:
            with contextlib.suppress(OSError):
                files.write_whole(recording / DONE, b"{}\n")
        # An earlier analysis may have kept it.
        if data_simplification and places.is_finalized(recording):
            references.release(recording, content)
    return root


def gather(recording: Path) -> Run:
    """Return the tables of a recording as the writers take them."""
    from strobe.finalize.run import finalize

    content = manifest.read(recording)
    declared = read_declaration(recording, content)
    _refuse_running(recording, content)
    tables = Tables(finalize(recording))
    return _gather(content, declared, tables, pretty=False, step_list=None)


def read_declaration(recording: Path, content: manifest.Manifest) -> Declaration:
    """Return what the recording is to become; raises FormatError where it is to become nothing."""
    for wanted in content.exports:
        if wanted.get("format") == FORMAT:
            return _read_declaration(recording, wanted)
    reason = "not recorded by strobe.mindspore; see strobe.open and strobe export"
    raise FormatError(recording, "recording", reason)


def _read_declaration(recording: Path, wanted: Mapping[str, Any]) -> Declaration:
    try:
        declared = Declaration(**wanted)
    except TypeError as error:
        raise FormatError(recording, "exports", f"not a declaration of a tree ({error})") from None
    if not isinstance(declared.parameters, dict) or not isinstance(declared.missing, dict):
        raise FormatError(recording, "exports", "parameters and missing must be objects")
    return declared


def _refuse_running(recording: Path, content: manifest.Manifest) -> None:
    if content.stop is not None or places.is_finalized(recording):
        return
    if manifest.is_alive(content.pid, content.process_start, content.host, content.boot):
        message = f"{str(recording)!r}: process {content.pid} still records into it; stop it first"
        raise StateError(message)


def _gather(
    content: manifest.Manifest,
    declared: Declaration,
    tables: Tables,
    *,
    pretty: bool,
    step_list: Sequence[int] | None,
) -> Run:
    from strobe.analysis.memory import name_owners
    from strobe.analysis.metadata import read_metadata
    from strobe.reports.mindspore_tree.run import Run, clip, step_bounds

    spans = tables.spans().collect()
    lanes = tables.threads().select("lane", "thread").collect()
    facts = read_metadata(tables)
    missing = {_PARAMETERS.get(name, name): why for name, why in content.missing.items()}
    frames = {
        "spans": spans,
        "steps": tables.steps().collect(),
        "allocations": name_owners(tables.allocations().collect(), spans),
        "instants": tables.instants().collect(),
        "batches": tables.batches().collect(),
    }
    clipped = clip(frames, step_list)
    bounds = step_bounds(clipped["steps"]) if step_list else (None, None)
    return Run(
        **clipped,
        facts=facts,
        parameters=declared.parameters,
        missing={**missing, **declared.missing},
        lanes=dict(lanes.iter_rows()),
        pipeline=_read_pipeline(tables.directory, *bounds),
        rank=_read_number(facts, "mindspore_rank", "rank"),
        pretty=pretty,
    )


def _read_number(facts: Mapping[str, str], *names: str) -> int:
    """Return the first of these facts that is a number, 0 if none is."""
    return next((int(facts[name]) for name in names if facts.get(name, "").isdecimal()), 0)


def _read_pipeline(tables: Path, start_ns: int | None, end_ns: int | None) -> Mapping[str, bytes]:
    """Return what MindData saved, by the names of its files without their rank.

    Of several pipelines, as of a training and its evaluation, the one with most batches.
    """
    from strobe.importers.minddata import read_busiest

    kept = filter(files.is_folder, files.list_folder(tables, places.ORIGINALS))
    return read_busiest(kept, start_ns, end_ns)


def _read_metadata(recording: Path, content: manifest.Manifest) -> dict[str, Any]:
    try:
        added = json.loads(content.metadata.get(METADATA, "{}"))
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(recording, METADATA, f"not JSON ({error})") from None
    if not isinstance(added, dict):
        raise FormatError(recording, METADATA, "not a JSON object")
    return added


def _refuse_links(recording: Path, *folders: Path) -> None:
    """Raise FormatError where files would be written through a link: trees come from anybody."""
    for folder in folders:
        problem = files.oddity(folder, "a folder")
        if problem is not None:
            raise FormatError(recording, folder.name, problem)


def _find_root(recording: Path, recording_id: str, declared: Declaration, run: Run) -> Path:
    """Return the tree's folder: around the recording, unless its rank was learnt only later.

    Then a file that is named by the recording's id tells which folder of that rank is its own.
    """
    around = recording.parent.parent
    if declared.kind == "profile" or "rank" in run.facts or "mindspore_rank" not in run.facts:
        return around
    world = _read_number(run.facts, "mindspore_world_size") or 1
    folder = _rank_folder(around.parent, run.rank, world)
    if folder == around.parent:
        return around
    _refuse_links(recording, folder)
    for known in files.list_folders(folder):
        if files.is_regular(known / RAW / f"{recording_id}{OWNER}"):
            return known
    root = _claim_numbered(folder)
    (root / RAW).mkdir()
    (root / RAW / f"{recording_id}{OWNER}").touch()
    return root
