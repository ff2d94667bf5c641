# SPDX-License-Identifier: Apache-2.0
"""Real DataLoaders: what their workers do is on the recording's timeline, errors are the user's."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from programs import Program, count, finished

pytestmark = pytest.mark.torch

DEFINITIONS = """
import gc, multiprocessing, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch, worker

from strobe.sources.torch import loading


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor(float(index * index))


class Parts(IterableDataset):
    # Ten numbers in the program itself, ten in each worker.
    def __iter__(self):
        info = get_worker_info()
        first = 10 * info.id if info else 0
        return iter(torch.arange(first, first + 10.0))


class Broken(Squares):
    def __getitem__(self, index):
        if index == 7:
            raise KeyError("sample 7", index)
        return super().__getitem__(index)


class Halting(Squares):
    def __getitem__(self, index):
        raise StopIteration("in the dataset")


def join(samples):
    return torch.stack(samples)


def refuse(samples):
    raise LookupError("no batch of these")


def patched():
    return [
        vars(fetch._MapDatasetFetcher)["fetch"],
        vars(fetch._IterableDatasetFetcher)["fetch"],
        vars(worker)["_worker_loop"],
        vars(dataloader._MultiProcessingDataLoaderIter)["_next_data"],
    ]


def record(loader, epochs=1):
    before = patched()
    with strobe.Profiler(output=OUT):
        assert not any(a is b for a, b in zip(before, patched()))
        batches = [batch.tolist() for _ in range(epochs) for batch in loader]
    assert all(a is b for a, b in zip(before, patched()))
    return batches


def caught(loader):
    try:
        for batch in loader:
            pass
    except BaseException as error:
        # In a worker the text of the traceback is part of the message; our frames may be in it.
        lines = str(error).splitlines()
        return type(error).__name__, lines[0], lines[-1], error.args[1:]
    finally:
        gc.collect()  # torch's iterators complain when they are collected in a forked worker
    return None
"""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = Program("c", tmp_path)
    yield program
    program.end()


def run(program: Program, body: str) -> None:
    """Run a body that prints JSON; spawned workers import the program too, without its body."""
    lines = textwrap.indent(textwrap.dedent(body), "    ")
    program.run(f"{DEFINITIONS}\nif __name__ == '__main__':\n    import json\n{lines}")


def loaded(program: Program, arguments: str, epochs: int = 1) -> tuple[list[list[float]], int]:
    """The batches that a DataLoader gave while recording, and the pid of the program."""
    run(
        program,
        f"""
        batches = record(DataLoader({arguments}), epochs={epochs})
        print(json.dumps([batches, os.getpid()]))
        """,
    )
    batches, pid = json.loads(program.printed)
    return batches, pid


def loading_spans(program: Program) -> pl.DataFrame:
    """The spans of data loading that ended; `parent` is a row among all spans."""
    return finished(program.spans()).filter(pl.col("category") == "data_loading")


def attributes(spans: pl.DataFrame, name: str) -> list[dict[str, int]]:
    return [json.loads(text) for text in spans.filter(pl.col("name") == name)["attributes"]]


def check_collate_is_inside_fetch(program: Program) -> None:
    spans = program.spans()
    parents = spans.filter(pl.col("name") == "collate")["parent"]
    assert set(spans["name"].gather(parents)) == {"fetch"}


SQUARES = [[float(i * i) for i in range(first, first + 4)] for first in range(0, 20, 4)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_record_with_the_program(program: Program, method: str) -> None:
    batches, pid = loaded(
        program,
        f"Squares(), batch_size=4, collate_fn=join, num_workers=2, "
        f"multiprocessing_context={method!r}",
    )
    spans = loading_spans(program)

    assert batches == SQUARES
    assert count(spans) == {"fetch": 5, "collate": 5}
    check_collate_is_inside_fetch(program)
    assert spans["pid"].n_unique() == 2
    assert pid not in spans["pid"]
    fetched = attributes(spans, "fetch")
    assert sorted(row["worker"] for row in fetched) == [0, 0, 0, 1, 1]
    assert {row["samples"] for row in fetched} == {4}
    for worker_pid in spans["pid"].unique():
        one = spans.filter(pl.col("pid") == worker_pid)
        assert len({row["worker"] for row in attributes(one, "fetch")}) == 1


def test_a_fork_server_older_than_the_recording(program: Program) -> None:
    run(
        program,
        """
        server = multiprocessing.get_context("forkserver")
        first = server.Process(target=len, args=([],))
        first.start(); first.join()
        record(DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=server))
        """,
    )

    assert count(loading_spans(program)) == {"fetch": 5, "collate": 5}


def counters_of_loaders(program: Program) -> pl.DataFrame:
    """All counters but those of the process, which every recording has."""
    counters = program.open().counters()
    return counters.filter(~pl.col("name").str.starts_with("process ")).collect()


def test_the_queue_is_counted(program: Program) -> None:
    loaded(program, "Squares(), batch_size=4, num_workers=2")
    counters = counters_of_loaders(program)

    assert counters["name"].unique().to_list() == ["DataLoader queue"]
    assert counters.height == 6  # one for each batch, and the call that finds the end
    assert set(counters["value"]) <= {0.0, 1.0, 2.0, 3.0, 4.0}  # 2 workers × prefetch_factor 2
    assert counters["value"][-1] == 0.0


def test_without_workers(program: Program) -> None:
    batches, pid = loaded(program, "Squares(), batch_size=4")
    spans = loading_spans(program)

    assert batches == SQUARES
    assert count(spans) == {"fetch": 5, "collate": 5}
    assert spans["pid"].unique().to_list() == [pid]
    assert attributes(spans, "fetch") == [{"samples": 4}] * 5
    check_collate_is_inside_fetch(program)
    assert counters_of_loaders(program).height == 0


def test_without_batches(program: Program) -> None:
    batches, _ = loaded(program, "Squares(), batch_size=None")
    spans = loading_spans(program)

    assert batches == [float(i * i) for i in range(20)]
    assert count(spans) == {"fetch": 20, "collate": 20}
    assert spans["attributes"].null_count() == 40


def test_persistent_workers_over_two_epochs(program: Program) -> None:
    batches, _ = loaded(
        program, "Squares(), batch_size=4, num_workers=2, persistent_workers=True", epochs=2
    )
    spans = loading_spans(program)

    assert batches == SQUARES * 2
    assert count(spans) == {"fetch": 10, "collate": 10}
    assert spans["pid"].n_unique() == 2


@pytest.mark.parametrize(
    ("workers", "batches"),  # 4 + 4 + 2 samples each: the end is found with data in hand
    [pytest.param(0, 3, id="in the program"), pytest.param(2, 6, id="in two workers")],
)
def test_an_iterable_dataset(program: Program, workers: int, batches: int) -> None:
    given, _ = loaded(program, f"Parts(), batch_size=4, num_workers={workers}")
    spans = loading_spans(program)

    assert len(given) == batches
    assert count(spans) == {"fetch": batches, "collate": batches}
    assert sorted(row["samples"] for row in attributes(spans, "collate")) == sorted(map(len, given))
    check_collate_is_inside_fetch(program)


def test_a_fetch_that_finds_only_the_end_is_a_fetch_without_collate(program: Program) -> None:
    given, _ = loaded(program, "Parts(), batch_size=5")  # 5 + 5, then the end

    assert len(given) == 2
    assert count(loading_spans(program)) == {"fetch": 3, "collate": 2}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "arguments",
    [
        "Broken(), batch_size=4",
        "Halting(), batch_size=4",
        "Squares(), batch_size=4, collate_fn=refuse",
    ],
)
def test_errors_are_the_users(program: Program, arguments: str, workers: int) -> None:
    run(
        program,
        f"""
        loader = DataLoader({arguments}, num_workers={workers})
        without = caught(loader)
        with strobe.Profiler(output=OUT): during = caught(loader)
        print(json.dumps([without, during, caught(loader)]))
        """,
    )
    without, during, after = json.loads(program.printed)

    assert (without is None) == ("Halting" in arguments)  # torch takes it for the end of the epoch
    assert during == without == after


def test_an_interrupted_fetch_leaves_the_fetcher_as_it_was(program: Program) -> None:
    run(
        program,
        """
        fetcher = fetch._MapDatasetFetcher(Broken(), True, join, False)
        with strobe.Profiler(output=OUT):
            try: fetcher.fetch([6, 7])
            except KeyError as error: assert error.args == ("sample 7", 7)
        assert fetcher.collate_fn is join
        """,
    )

    assert count(loading_spans(program)) == {"fetch": 1}


def test_what_is_missing_in_torch_is_said_and_left_out(program: Program) -> None:
    run(
        program,
        """
        del fetch._IterableDatasetFetcher
        worker._worker_loop = join
        before = vars(fetch._MapDatasetFetcher)["fetch"]
        print(json.dumps(loading.attach()))
        assert vars(fetch._MapDatasetFetcher)["fetch"] is not before
        loading.detach()
        assert vars(fetch._MapDatasetFetcher)["fetch"] is before
        assert worker._worker_loop is join
        """,
    )

    assert json.loads(program.printed) == [
        "torch.utils.data._utils.fetch._IterableDatasetFetcher.fetch is not in this version of "
        "PyTorch",
        "torch.utils.data._utils.worker._worker_loop has been replaced by another library",
    ]


def test_a_patch_made_over_ours_stays(program: Program) -> None:
    run(
        program,
        """
        loading.attach()
        ours = fetch._MapDatasetFetcher.fetch
        theirs = lambda self, index: ours(self, index)
        fetch._MapDatasetFetcher.fetch = theirs
        loading.detach()
        assert vars(fetch._MapDatasetFetcher)["fetch"] is theirs
        assert [batch.tolist() for batch in DataLoader(Squares(), batch_size=10)][1][0] == 100
        """,
    )


def batches(program: Program) -> pl.DataFrame:
    return program.open().batches().collect()


@pytest.mark.parametrize("workers", [0, 2])
def test_each_batch_knows_who_fetched_it_and_how_long_it_took(
    program: Program, workers: int
) -> None:
    run(
        program,
        f"""
        class Slower(Squares):
            def __getitem__(self, index):
                time.sleep(0.01 if index >= 12 else 0)
                return super().__getitem__(index)

        record(DataLoader(Slower(), batch_size=4, collate_fn=join, num_workers={workers}))
        """,
    )
    table = batches(program)
    fetches = loading_spans(program).filter(pl.col("name") == "fetch")

    assert table["loader"].to_list() == ["DataLoader(Slower)"] * 5
    assert table["number"].to_list() == list(range(5))
    assert table["samples"].to_list() == [4] * 5
    assert table["worker"].to_list() == ([0, 1, 0, 1, 0] if workers else [None] * 5)
    assert (table["fetch_ns"][3:] >= 40_000_000).all()  # four samples of 10 ms each
    assert (table["ready_ns"] <= table["start_ns"] + table["wait_ns"]).all()
    # The span lies inside what was measured around it.
    for ready_ns, fetch_ns in table.select("ready_ns", "fetch_ns").iter_rows():
        inside = fetches.filter(
            pl.col("start_ns") + pl.col("dur_ns") >= ready_ns - fetch_ns,
            pl.col("start_ns") + pl.col("dur_ns") <= ready_ns + 1_000_000_000,
        )
        assert inside.height >= 1
    assert (table["collate_ns"] <= table["fetch_ns"]).all()
    assert (table["cpu_ns"] <= table["fetch_ns"] + 1_000_000).all()
    assert table["queue"].null_count() == (0 if workers else 5)
    waits = program.spans()["name"].gather(table["span"].to_list())
    assert waits.str.starts_with("enumerate(DataLoader)#").all()


def test_a_watched_loader_is_one_loader_with_the_name_it_was_given(program: Program) -> None:
    run(
        program,
        """
        record(strobe.watch(DataLoader(Squares(), batch_size=4, num_workers=1), name="train"))
        """,
    )
    table = batches(program)

    assert table.select("loader", "number", "samples", "worker").rows() == [
        ("train", number, 4, 0) for number in range(5)
    ]
    assert table["fetch_ns"].null_count() == 0
    assert table["outer"].null_count() == 5


def test_batches_of_iterable_datasets_and_of_a_loader_that_began_before(program: Program) -> None:
    run(
        program,
        """
        began = iter(DataLoader(Squares(), batch_size=4, num_workers=1, prefetch_factor=2))
        next(began)
        with strobe.Profiler(output=OUT):
            rest = [batch.tolist() for batch in began]
            parts = [part.tolist() for part in DataLoader(Parts(), batch_size=4, num_workers=2)]
        assert len(rest) == 4 and len(parts) == 6
        """,
    )
    table = batches(program)
    first, parts = (
        table.filter(pl.col("loader") == f"DataLoader({n})") for n in ("Squares", "Parts")
    )

    assert first["number"].to_list() == [1, 2, 3, 4]
    assert first["fetch_ns"].null_count() == 4  # by a worker that was there before
    # Two workers of ten samples each: three batches, of which the last holds two.
    assert parts["worker"].to_list() == [0, 1, 0, 1, 0, 1]
    assert parts["fetch_ns"].null_count() == 0
