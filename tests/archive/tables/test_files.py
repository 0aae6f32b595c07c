"""Whatever file a user names, it is a table or a clear error."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from archive.tables import blocks
from archive.tables.files import open_table
from handler.errors import GraphInputError
from handler.graph.progress import SILENT
from tests.archive.tables.reading import AUTO


def test_a_missing_column_is_refused_by_name(
    write: Callable[..., Path], parquet: Callable[..., Path]
) -> None:
    with pytest.raises(GraphInputError, match="t.csv: has no column 'x'; its columns are 'a', 'b'$"):
        next(open_table(write("a,b\n1,2\n"), AUTO).chunks(["x"], SILENT))
    with pytest.raises(GraphInputError, match="t.parquet: has no column 'x'; its columns are 'a'$"):
        next(open_table(parquet(a=[1]), AUTO).chunks(["x"], SILENT))
    with pytest.raises(GraphInputError, match="t.csv: has 2 columns 'a'"):
        next(open_table(write("a,a\n1,2\n"), AUTO).chunks(["a"], SILENT))
    many = ",".join(f"c{place}" for place in range(25))
    with pytest.raises(GraphInputError, match="'c19' and 5 more$"):
        next(open_table(write(many), AUTO).chunks(["x"], SILENT))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("t.csv", b"", ": the file has neither rows nor a header"),
        ("t.csv", b"# nothing\n\n", ": the file has neither rows nor a header"),
        ("t.csv.gz", b"", ": the file has neither rows nor a header"),
        (
            "t.csv.gz",
            gzip.compress(bytes(range(48, 58)) * 20000)[:-12],
            ": cannot be read: Truncated compressed stream",
        ),
        ("t.csv.gz", b"a,b\n1,2\n", ": cannot be read: zlib inflate failed: incorrect header check"),
        ("t.csv.bz2", b"a,b\n1,2\n", ": cannot be read: "),
        ("t.csv.zst", b"a,b\n1,2\n", ": cannot be read: "),
        ("t.parquet", b"", ": cannot be read: "),
        ("t.parquet", b"PAR1 and then nothing PAR1", ": cannot be read: "),
        ("t.csv", b"\n\xff,b\n1,2\n", ":2: the first line is not UTF-8 text"),
        ("t.csv", "a,b\n".encode("utf-16"), ": is UTF-16, but a table must be UTF-8 text"),
        ("t.csv", b"a" * 200000 + b"\n", ":1: the first line: field larger than field limit"),
    ],
)
def test_a_file_without_a_table_is_one_clear_error(
    write: Callable[..., Path], name: str, content: bytes, problem: str
) -> None:
    path = write(content, name)
    with pytest.raises(GraphInputError) as caught:
        list(open_table(path, AUTO).chunks([], SILENT))
    assert str(caught.value).startswith(f"{path}{problem}")


def test_what_is_no_file_is_one_clear_error(tmp_path: Path) -> None:
    for name in ("missing.csv", "missing.parquet"):
        with pytest.raises(GraphInputError, match=f"{name}: no such file"):
            open_table(tmp_path / name, AUTO)
    with pytest.raises(GraphInputError, match="is a folder, not a table"):
        open_table(tmp_path, AUTO)


def test_progress_counts_the_bytes_of_text_and_the_rows_of_parquet(
    write: Callable[..., Path], parquet: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 4)
    watcher = _Watcher()
    packed = write(gzip.compress(b"1,2\n" * 9), "t.csv.gz")
    for path, column in ((packed, "0"), (parquet(i=[1, 2, 3]), "i")):
        list(open_table(path, AUTO).chunks([column], watcher))
    size = packed.stat().st_size
    assert watcher.bars == [["reading t.csv.gz", size, "B", size], ["reading t.parquet", 3, "row", 3]]


class _Watcher:
    def __init__(self) -> None:
        self.bars: list[list[Any]] = []

    def say(self, step: str) -> None:
        pass

    @contextmanager
    def bar(self, step: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
        self.bars.append([step, total, unit, 0])

        def advance(done: int) -> None:
            self.bars[-1][3] += done

        yield advance
