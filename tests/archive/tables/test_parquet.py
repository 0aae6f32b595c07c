"""Parquet files say of what types their columns are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from archive.tables import parquet as parquet_tables
from archive.tables.columns import as_float, as_int64, as_text
from archive.tables.files import open_table
from handler.errors import GraphInputError
from handler.graph.progress import SILENT
from tests.archive.tables.reading import AUTO, Convert, as_times, read_column


def test_parquet_has_types(parquet: Callable[..., Path]) -> None:
    hour = dt.datetime(1970, 1, 1, 1, tzinfo=dt.UTC)
    path = parquet(
        int=pa.array([1, 2], pa.uint8()),
        float=[0.5, 1.5],
        text=["a", "b"],
        digits=["1", "2"],
        dictionary=pa.array(["a", "b"]).dictionary_encode(),
        numbers=pa.array([3, 4]).dictionary_encode(),
        raw=pa.array([b"a", b"b"]),
        flag=[False, True],
        date=[dt.date(1970, 1, 2), dt.date(1970, 1, 1)],
        **{f"at.{unit}": pa.array([hour, hour], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
        zone=pa.array([hour, hour], pa.timestamp("us", "Europe/Berlin")),
    )
    for column in ("int", "digits"):
        assert read_column(path, column, as_int64) == [1, 2]
    assert read_column(path, "numbers", as_int64) == [3, 4]
    assert read_column(path, "float", as_float) == [0.5, 1.5]
    assert read_column(path, "flag", as_float) == [0, 1]
    for column in ("text", "dictionary", "raw"):
        assert read_column(path, column, as_text) == ["a", "b"]
    assert read_column(path, "int", as_text) == ["1", "2"]
    assert read_column(path, "date", as_times()) == [86400, 0]
    assert read_column(path, "int", as_times()) == [1, 2]
    for column in ("at.s", "at.ms", "at.us", "at.ns", "zone"):
        assert read_column(path, column, as_times()) == [3600, 3600]


def test_a_null_in_parquet_is_a_bad_row(parquet: Callable[..., Path]) -> None:
    path = parquet(i=[1, None], f=[1.0, None], s=["1", None], t=[dt.date(1970, 1, 1), None])
    cases: list[tuple[str, Convert]] = [
        ("i", as_int64), ("f", as_float), ("s", as_int64), ("s", as_float), ("s", as_text), ("t", as_times()),
    ]  # fmt: skip
    for column, convert in cases:
        with pytest.raises(GraphInputError, match=f"t.parquet:2: column '{column}' is empty"):
            read_column(path, column, convert)
        assert len(read_column(path, column, convert, skip=True)) == 1


def test_parquet_integers_must_fit(parquet: Callable[..., Path]) -> None:
    path = parquet(i=pa.array([1, 2**63], pa.uint64()), t=[1, 2**53 + 1])
    with pytest.raises(GraphInputError, match="t.parquet:2: column 'i': 9223372036854775808 does not fit"):
        read_column(path, "i", as_int64)
    with pytest.raises(GraphInputError, match="t.parquet:2: column 't': 9007199254740993 is 2"):
        read_column(path, "t", as_times())


def test_parquet_rows_are_numbered_over_all_batches(
    parquet: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_tables, "_BATCH_CELLS", 2)
    chunks = list(open_table(parquet(i=[5, 6, 7]), AUTO).chunks(["i"], SILENT))
    assert [chunk.lines.tolist() for chunk in chunks] == [[1, 2], [3]]
