# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import StateError, UsageError
from strobe.store import _encodings, parquet
from strobe.store.parquet import Column, ColumnType, TableWriter

DTYPES = {
    "int64": pl.Int64,
    "int32": pl.Int32,
    "float64": pl.Float64,
    "bool": pl.Boolean,
    "string": pl.String,
}
ALL_TYPES: dict[str, ColumnType] = {
    kind: kind for kind in ("int64", "int32", "float64", "bool", "string")
}


def integers(bits: int) -> st.SearchStrategy[int]:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.integers(least, most) | st.sampled_from([least, most, 0, -1]) | st.integers(-3, 3)


ROWS = st.fixed_dictionaries(
    {
        "int64": st.none() | integers(64),
        "int32": st.none() | integers(32),
        "float64": st.none() | st.floats(allow_nan=False),
        "bool": st.none() | st.booleans(),
        "string": st.none()
        | st.text(max_size=4)
        | st.sampled_from(["", "\0", "a\0b", "a\0", "aten::mm", "é", "𝄞"]),
    }
)


def frame(rows: list[dict[str, object]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=DTYPES)


def write(path: Path, schema: dict[str, ColumnType], *groups: dict[str, Column]) -> Path:
    with TableWriter(path, schema) as writer:
        for group in groups:
            writer.append(group)
    return path


def read_back(path: Path, kind: ColumnType, *columns: Column) -> pl.Series:
    return pl.read_parquet(write(path, {"x": kind}, *[{"x": column} for column in columns]))["x"]


@given(groups=st.lists(st.lists(ROWS, max_size=40), max_size=4))
def test_what_is_written_is_read_by_polars(
    tmp_path_factory: pytest.TempPathFactory, groups
) -> None:
    frames = [frame(rows) for rows in groups]

    path = write(
        tmp_path_factory.mktemp("t") / "t.parquet", ALL_TYPES, *[part.to_dict() for part in frames]
    )

    expected = pl.concat([frame([]), *frames])
    assert pl.read_parquet(path).equals(expected)
    assert pl.scan_parquet(path).collect().equals(expected)


@pytest.mark.parametrize("encoding", [_encodings.SPLIT, _encodings.DELTA, _encodings.DICTIONARY])
@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data())
def test_every_encoding_holds_every_integer(
    tmp_path_factory, encoding: int, bits: int, data
) -> None:
    values = np.array(
        data.draw(st.lists(integers(bits), min_size=1, max_size=200)), f"i{bits // 8}"
    )
    values = np.resize(values, data.draw(st.sampled_from([1, 2, 32, 33, 1024, 1025, 1026, 2500])))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_encodings, "_choose_encoding", lambda *_, **__: encoding)
        result = read_back(tmp_path_factory.mktemp("t") / "t.parquet", f"int{bits}", values)

    assert result.to_numpy().tobytes() == values.tobytes()


def test_deltas_are_laid_out_as_the_format_says() -> None:
    encoded = _encodings._encode_delta(np.array([7, 5, 300]))

    # Blocks of 1024 in 32 minis, 3 values from 7 on; the deltas -2 and 295 lie 0 and 297 above -2.
    head = bytes([0x80, 0x08, 32, 3, 14])
    assert encoded == head + bytes([3]) + bytes([16] + [0] * 31) + bytes(
        [0, 0, 0x29, 0x01] + [0] * 60
    )


@pytest.mark.parametrize("byte", range(8))
@pytest.mark.parametrize("less", [0, 1])
def test_deltas_at_the_edge_of_a_width(tmp_path: Path, monkeypatch, byte: int, less: int) -> None:
    monkeypatch.setattr(_encodings, "_choose_encoding", lambda *_, **__: _encodings.DELTA)
    values = np.array([0, 0, (1 << 8 * byte) - less])

    assert read_back(tmp_path / "t.parquet", "int64", values).to_list() == values.tolist()


@pytest.mark.parametrize("encoding", [_encodings.SPLIT, _encodings.DICTIONARY])
def test_floats_keep_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: int
) -> None:
    monkeypatch.setattr(_encodings, "_choose_encoding", lambda *_, **__: encoding)
    values = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, 0.1] * 3)

    result = read_back(tmp_path / "t.parquet", "float64", values)

    assert result.to_numpy().tobytes() == values.tobytes()


@pytest.mark.parametrize("count", [1, 2, 256, 257, 65_536, 65_537])
def test_dictionaries_of_every_index_width(tmp_path: Path, count: int) -> None:
    names = pl.Series([f"kernel_{i}" for i in range(count)])

    assert read_back(tmp_path / "t.parquet", "string", names).equals(names)


@pytest.mark.parametrize("dtype", [pl.Enum(["unused", "b", "", "a"]), pl.Categorical])
def test_enums_and_categories_are_read_as_strings(tmp_path: Path, dtype: pl.DataType) -> None:
    names = ["a", None, "b", "", "a"]

    result = read_back(tmp_path / "t.parquet", "string", pl.Series(names, dtype=dtype))

    assert result.dtype == pl.String
    assert result.to_list() == names


def test_a_sliced_series_is_written_as_it_looks(tmp_path: Path) -> None:
    values = pl.concat([pl.Series([1, None, 3]), pl.Series([None, 5, 6])]).slice(1, 4)

    assert read_back(tmp_path / "t.parquet", "int64", values).to_list() == [None, 3, None, 5]


def test_none_is_a_column_of_nulls(tmp_path: Path) -> None:
    group: dict[str, Column] = {**dict.fromkeys(ALL_TYPES), "int64": np.arange(20)}

    table = pl.read_parquet(write(tmp_path / "t.parquet", ALL_TYPES, group))

    assert table["int64"].to_list() == list(range(20))
    assert [table[kind].null_count() for kind in ALL_TYPES] == [0, 20, 20, 20, 20]


@pytest.mark.parametrize("appends", [0, 1])
def test_an_empty_table_keeps_its_columns(tmp_path: Path, appends: int) -> None:
    path = write(tmp_path / "t.parquet", ALL_TYPES, *[frame([]).to_dict()] * appends)

    assert pl.read_parquet(path).schema == pl.Schema(DTYPES)
    assert pl.scan_parquet(path).select(pl.len()).collect().item() == 0


@pytest.mark.parametrize("columns", [1, 13, 14, 15, 16, 40])
def test_many_row_groups_and_many_columns(tmp_path: Path, columns: int) -> None:
    schema: dict[str, ColumnType] = {f"c{i}": "int64" for i in range(columns)}
    groups = [{name: np.arange(g, g + 3) * i for i, name in enumerate(schema)} for g in range(200)]

    table = pl.read_parquet(write(tmp_path / "t.parquet", schema, *groups))

    assert table.height == 600
    assert all(
        table[name].sum() == sum(int(group[name].sum()) for group in groups) for name in schema
    )


def test_a_filter_on_a_sorted_column_skips_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    with TableWriter(path, {"start_ns": "int64", "name": "string"}) as writer:
        writer.append({"start_ns": np.arange(0, 1000), "name": pl.Series(["early"] * 1000)})
        first_group_end = writer._offset
        writer.append({"start_ns": np.arange(1000, 2000), "name": pl.Series(["late"] * 1000)})
    spoiled = bytearray(path.read_bytes())
    spoiled[4:first_group_end] = b"\xff" * (first_group_end - 4)
    path.write_bytes(spoiled)

    late = pl.scan_parquet(path).filter(pl.col("start_ns") >= 1500).collect()

    assert late["name"].to_list() == ["late"] * 500
    with pytest.raises(pl.exceptions.PolarsError):
        pl.scan_parquet(path).filter(pl.col("start_ns") >= 500).collect()


@pytest.mark.parametrize("bounds", [(-(1 << 63), -1), (-5, 5), (1, (1 << 63) - 1)])
def test_statistics_are_signed(tmp_path: Path, bounds: tuple[int, int]) -> None:
    path = write(
        tmp_path / "t.parquet", {"x": "int64"}, {"x": np.array(bounds)}, {"x": np.array([0])}
    )

    for bound in bounds:
        assert pl.scan_parquet(path).filter(pl.col("x") == bound).collect()["x"].to_list() == [
            bound
        ]
        assert (
            pl.scan_parquet(path).filter(pl.col("x") <= bound).collect()["x"].to_list().count(bound)
            == 1
        )


@pytest.mark.parametrize(
    ("step_ns", "most_bytes"),
    [(1 << 8, 1.2), (1 << 12, 2.0), (1 << 16, 2.5)],
    ids=["256 ns", "4 us", "65 us"],
)
def test_a_sorted_column_costs_little_more_than_its_steps(
    tmp_path: Path, step_ns: int, most_bytes: float
) -> None:
    steps = np.random.default_rng(0).integers(0, step_ns, 100_000)

    path = write(
        tmp_path / "t.parquet",
        {"start_ns": "int64"},
        {"start_ns": 1_700_000_000_000_000_000 + steps.cumsum()},
    )

    assert path.stat().st_size / 100_000 < most_bytes


@pytest.mark.parametrize(
    ("kind", "column", "complaint"),
    [
        ("int64", pl.Series([1.5]), "is Float64; the schema says int64"),
        ("int64", pl.Series([True]), "is Boolean; the schema says int64"),
        ("int64", pl.Series(["1"]), "is String; the schema says int64"),
        ("string", pl.Series([1]), "is Int64; the schema says string"),
        ("bool", np.array([1]), "is Int64; the schema says bool"),
        ("int32", np.array([1 << 31]), "do not fit its type int32"),
        ("int64", np.array([1 << 63], np.uint64), "do not fit its type int64"),
    ],
)
def test_a_wrong_value_raises_and_names_the_column(
    tmp_path: Path, kind: ColumnType, column: Column, complaint: str
) -> None:
    with pytest.raises(UsageError, match=f"'x'.*{complaint}"):
        write(tmp_path / "t.parquet", {"x": kind}, {"x": column})

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"a": np.arange(2)},
        {"a": np.arange(2), "b": np.arange(3)},
        {"a": None, "b": None},
        {"a": np.arange(2), "b": np.arange(2), "c": np.arange(2)},
    ],
    ids=["missing", "lengths differ", "no length", "unknown"],
)
def test_columns_that_do_not_make_a_table_are_refused(
    tmp_path: Path, columns: dict[str, Column]
) -> None:
    with pytest.raises(UsageError, match=r"append to .*expected"):
        write(tmp_path / "t.parquet", {"a": "int64", "b": "int64"}, columns)


def test_an_unknown_type_is_refused_before_a_file_exists(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="column 'x' of type 'int16'"):
        TableWriter(tmp_path / "t.parquet", {"x": "int16"})  # type: ignore[dict-item]

    assert list(tmp_path.iterdir()) == []


def test_a_refused_append_leaves_the_table_whole(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.parquet", {"a": "int64", "b": "int32"}) as writer:
        writer.append({"a": np.array([1]), "b": np.array([1])})
        with pytest.raises(UsageError, match="int32"):
            writer.append({"a": np.array([2]), "b": np.array([1 << 40])})
        writer.append({"a": np.array([3]), "b": np.array([3])})

    assert pl.read_parquet(tmp_path / "t.parquet").rows() == [(1, 1), (3, 3)]


def test_a_column_too_large_for_a_page_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_PAGE_LIMIT_BYTES", 1000)

    with pytest.raises(UsageError, match=r"'x'.*append fewer rows"):
        write(tmp_path / "t.parquet", {"x": "string"}, {"x": pl.Series(["y" * 2000])})


def test_a_failed_block_leaves_the_older_table(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"x": "int64"}, {"x": np.array([1])})

    with pytest.raises(UsageError):
        write(path, {"x": "int64"}, {"x": np.array([2])}, {"y": np.array([3])})

    assert pl.read_parquet(path)["x"].to_list() == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_appears_only_at_close(tmp_path: Path) -> None:
    writer = TableWriter(tmp_path / "t.parquet", {"x": "int64"})
    writer.append({"x": np.array([1])})
    before = [path.name for path in tmp_path.iterdir()]

    writer.close()

    assert before == ["t.parquet.part"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    class FullDisk:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    writer = TableWriter(tmp_path / "t.parquet", {"x": "int64"})
    writer._file.close()
    writer._file = FullDisk()

    with pytest.raises(OSError, match="No space left"):
        writer.append({"x": np.array([1])})

    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateError, match="is closed"):
        writer.close()


def test_a_closed_writer_raises(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.parquet", {"x": "int64"}) as writer:
        pass

    with pytest.raises(StateError, match="is closed"):
        writer.append({"x": np.array([], int)})
    with pytest.raises(StateError, match="is closed"):
        writer.close()
