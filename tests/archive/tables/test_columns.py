"""Values become arrays, or are told with their line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from archive.tables.columns import as_float, as_int64, as_text, plain_integers
from handler.errors import GraphInputError
from tests.archive.tables.reading import Convert, read_column


@pytest.mark.parametrize(
    ("convert", "value", "problem"),
    [
        (as_int64, "", "column 'a' is empty"),
        (as_int64, "  ", "column 'a' is empty"),
        (as_int64, "x", "column 'a': 'x' is not an integer"),
        (as_int64, "1.0", "column 'a': '1.0' is not an integer"),
        (as_int64, "0x1f", "column 'a': '0x1f' is not an integer"),
        (as_int64, "1_0", "column 'a': '1_0' is not an integer"),
        (as_int64, "9223372036854775808", "column 'a': '9223372036854775808' does not fit a 64-bit integer"),
        (as_int64, "x" * 99, f"column 'a': '{'x' * 56}... is not an integer"),
        (as_float, "", "column 'a' is empty"),
        (as_float, "x", "column 'a': 'x' is not a number"),
        (as_float, "1_0", "column 'a': '1_0' is not a number"),
        (as_float, "nan", "column 'a': 'nan' is not finite"),
        (as_float, "-Infinity", "column 'a': '-Infinity' is not finite"),
        (as_float, "1e999", "column 'a': '1e999' is not finite"),
        (as_float, "1e39", "column 'a': '1e39' does not fit float32"),
        (as_text, "", "column 'a' is empty"),
        (as_text, " \t", "column 'a' is empty"),
        (as_text, b"\xff", r"column 'a': '\\xff' is not UTF-8 text"),
    ],
)
def test_a_bad_value_is_told_with_its_line(
    write: Callable[..., Path], convert: Convert, value: str | bytes, problem: str
) -> None:
    raw = value.encode() if isinstance(value, str) else value
    path = write(b"a,b\n1,\n\n" + raw + b",\n2,\n")
    with pytest.raises(GraphInputError) as caught:
        read_column(path, "a", convert)
    assert str(caught.value) == f"{path}:4: {problem}"
    assert read_column(path, "a", convert, skip=True) in ([1, 2], ["1", "2"])


def test_numbers_may_have_spaces_around_and_a_sign(write: Callable[..., Path]) -> None:
    path = write("a,b\n 1, +1.5\n+2,-.5e1\n 007\t,2.\n-9223372036854775808 ,  3\n")
    assert read_column(path, "a", as_int64) == [1, 2, 7, -(2**63)]
    assert read_column(path, "b", as_float) == [1.5, -5.0, 2.0, 3.0]


def test_gaps_are_nan_where_they_are_asked_for(write: Callable[..., Path]) -> None:
    path = write("a,b\n1,\n,\ninf,\n1e5,\n")
    values = read_column(path, "a", lambda check, column: as_float(check, column, "float16", gaps=True))
    assert [None if np.isnan(value) else value for value in values] == [1, None, None, None]
    with pytest.raises(GraphInputError, match="t.csv:2: column 'a': 'x' is not a number"):
        read_column(write("a,b\nx,1\n"), "a", lambda check, column: as_float(check, column, gaps=True))


def test_a_column_of_the_wrong_type_is_one_error(parquet: Callable[..., Path]) -> None:
    path = parquet(f=[1.0], d=[dt.date(1970, 1, 1)], n=[[1]])
    for convert, column, problem in (
        (as_int64, "f", "column 'f' holds double, not integers"),
        (as_text, "f", "column 'f' holds double, not text or integers"),
        (as_float, "d", "column 'd' holds date32[day], not numbers"),
        (as_float, "n", "column 'n' holds list<element: int64>, not numbers"),
    ):
        with pytest.raises(GraphInputError) as caught:
            read_column(path, column, convert)  # type: ignore[arg-type]
        assert str(caught.value) == f"{path}: {problem}"


@pytest.mark.parametrize(
    ("values", "integers"),
    [
        (["1", " -2", "", "0"], True),
        ([], True),
        (["1", "x"], False),
        (["1", "1.0"], False),
        (["1", "007"], False),
        (["+1"], False),
        (["0x10"], False),
        (["9223372036854775808"], False),
    ],
)
def test_ids_are_integers_if_all_are_written_as_such(values: list[str], integers: bool) -> None:
    assert plain_integers(pa.array([value.encode() for value in values], pa.binary())).all() == integers
    assert plain_integers(pa.array(values, pa.large_string())).all() == integers


def test_the_types_of_parquet_say_what_plain_integers() -> None:
    assert plain_integers(pa.array([1, None])).all()
    assert not plain_integers(pa.array([1.0])).any()
