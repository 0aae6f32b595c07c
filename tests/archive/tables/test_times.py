"""Times are what the first of them is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archive.tables import blocks
from handler.errors import GraphInputError
from tests.archive.tables.reading import as_times, read_column


@pytest.mark.parametrize(
    ("texts", "seconds"),
    [
        (["1.5", " -2", "1e9"], [1.5, -2, 1e9]),
        (["1970-01-02", "1970-01-01T00:00:01"], [86400, 1]),
        (["1970-01-01 00:00:01.25", "1970-01-01T00:00:02.5"], [1.25, 2.5]),
        (["1970-01-01T01:00:00+01:00", "1970-01-01T00:00:01Z"], [0, 1]),
        (["1970-01-01", "1970-01-01T00:00:01Z"], [0, 1]),
        (["1970-01-01T00:00:00.123456789", "1970-01-01"], [0.123456789, 0]),
        ([" 1970-01-02 ", "1970-01-01"], [86400, 0]),
    ],
)
def test_times_are_numbers_or_calendar_times(
    write: Callable[..., Path], texts: list[str], seconds: list[float]
) -> None:
    path = write("time,x\n" + "".join(f"{text},\n" for text in texts))
    assert read_column(path, "time", as_times()) == seconds


@pytest.mark.parametrize(
    ("first", "value", "problem"),
    [
        ("1", "2020-01-01", "'2020-01-01' is neither a number nor, like the first one, an ISO 8601 time"),
        ("2020-01-01", "5", "'5' is not an ISO 8601 time, as the first one is"),
        ("2020-01-01", "2020-13-01", "'2020-13-01' is not an ISO 8601 time, as the first one is"),
        ("1", "nan", "'nan' is not finite"),
        ("1", "9007199254740993", "'9007199254740993' is 2**53 or more, where float64 would round it"),
    ],
)
def test_a_bad_time_is_told_with_its_line(
    write: Callable[..., Path], first: str, value: str, problem: str
) -> None:
    path = write(f"time,x\n{first},\n{value},\n")
    with pytest.raises(GraphInputError) as caught:
        read_column(path, "time", as_times())
    assert str(caught.value) == f"{path}:3: column 'time': {problem}"


def test_the_first_time_decides_for_all_chunks(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 16)
    path = write("time,x\n,\n2020-01-01,\n2020-01-02,\n7,\n")
    with pytest.raises(GraphInputError, match="t.csv:2: column 'time' is empty"):
        read_column(path, "time", as_times())
    assert read_column(path, "time", as_times(), skip=True) == [1577836800, 1577923200]
