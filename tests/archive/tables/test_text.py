"""Text is read line by line, and what is no row is told."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive.tables import blocks
from archive.tables.columns import as_float, as_int64, as_text
from archive.tables.files import open_table
from archive.tables.format import TableFormat
from handler.errors import GraphInputError
from handler.graph.progress import SILENT
from tests.archive.tables.reading import AUTO, lines_of, read_column


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lambda raw: pa.Codec("zstd").compress(raw).to_pybytes()]
)
def test_compressed_text_is_read_by_the_name_of_the_file(write: Callable[..., Path], pack: Any) -> None:
    suffix = {gzip.compress: "gz", bz2.compress: "bz2"}.get(pack, "zst")
    path = write(pack(b"a\tb\n1\t2\n"), f"t.tsv.{suffix}")
    assert read_column(path, "b", as_int64) == [2]


def test_several_gzip_files_in_a_row_are_one(write: Callable[..., Path]) -> None:
    path = write(gzip.compress(b"1,2\n") + gzip.compress(b"3,4\n"), "t.csv.gz")
    assert read_column(path, "1", as_int64) == [2, 4]


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_rows_know_their_lines(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, line_end: str, block_bytes: int
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", block_bytes)
    lines = ["# a comment", "", "a,b", "", "1,2", "3", "", "", "4,5,6", '"7",8', "# 9,10", "11,12", ""]
    table = open_table(write(line_end.join(lines)), AUTO)
    chunks = list(table.chunks(["a"], SILENT))
    rows = [(line, value) for chunk in chunks for line, value in lines_of(chunk)]
    assert rows == [(5, "1"), (10, "7"), (11, "# 9"), (12, "11")]
    broken = [entry for chunk in chunks for entry in chunk.broken]
    assert broken == [(6, "has 1 columns, not 2"), (9, "has 3 columns, not 2")]


def test_a_quote_that_stays_open_is_one_bad_line(write: Callable[..., Path]) -> None:
    lines = ["a,b", "1,x", '2,"y', "3,z", '"4","w ""w"', "5,6,7", '8,"', '9,5"', '10,"v']
    chunks = list(open_table(write("\n".join(lines)), AUTO).chunks(["b"], SILENT))
    rows = [row for chunk in chunks for row in lines_of(chunk)]
    assert rows == [(2, "x"), (4, "z"), (5, 'w "w'), (8, '5"')]
    assert [entry for chunk in chunks for entry in chunk.broken] == [
        (3, "a quote is not closed before the line ends"),
        (6, "has 3 columns, not 2"),
        (7, "a quote is not closed before the line ends"),
        (9, "a quote is not closed before the line ends"),
    ]


def test_other_columns_need_not_be_utf8(write: Callable[..., Path]) -> None:
    path = write(b"a,b\n1,\xe4\n2,\xe4,\n3,x\n\n4,\xe4\n")
    (chunk,) = open_table(path, AUTO).chunks(["a"], SILENT)
    assert lines_of(chunk) == [(2, "1"), (4, "3"), (6, "4")]
    assert chunk.broken == ((3, "has 3 columns, not 2"),)


_KINDS = {
    "1,x": None,
    '"2","y, z"': None,
    "3,\xff": None,
    "# 4,w": None,
    "": None,
    "5": "has 1 columns, not 2",
    "6,\xff,": "has 3 columns, not 2",
    '7,"v': "a quote is not closed before the line ends",
}


@given(st.lists(st.sampled_from(list(_KINDS)), max_size=30), st.integers(1, 40), st.booleans())
def test_every_line_is_a_row_or_nothing_or_told(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block_bytes: int, ends: bool
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes("\n".join(["a,b", *lines, *[""] * ends]).encode("latin-1"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_BYTES", block_bytes)
        chunks = list(open_table(path, AUTO).chunks(["a"], SILENT))
    numbered = list(enumerate(lines, 2))
    assert [row for chunk in chunks for row in lines_of(chunk)] == [
        (line, text.split(",")[0].strip('"')) for line, text in numbered if text and not _KINDS[text]
    ]
    told = {line: problem for chunk in chunks for line, problem in chunk.broken}
    assert list(told) == [line for line, text in numbered if _KINDS[text]]
    # Alone in its block, an open quote is a field too few as well.
    assert all(told[line] == _KINDS[lines[line - 2]] or lines[line - 2][:1] == "7" for line in told)


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), min_size=1),
        ),
        max_size=20,
    ),
    st.sampled_from(",;\t| "),
    st.booleans(),
)
def test_what_the_csv_module_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, float, str]], delimiter: str, packed: bool
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows([("id", "number", "text"), *rows])
    raw = text.getvalue().encode()
    path = tmp_path_factory.mktemp("t") / ("t.txt.gz" if packed else "t.txt")
    path.write_bytes(gzip.compress(raw) if packed else raw)
    layout = TableFormat(delimiter)
    ids = [row[0] for row in rows]
    assert read_column(path, "id", as_int64, layout) == ids
    assert read_column(path, "number", as_float, layout) == [row[1] for row in rows]
    strs = [row[2] for row in rows if row[2].strip(" \t\n\v\f")]
    assert read_column(path, "text", as_text, layout, skip=True) == strs


def test_a_file_that_ends_early_is_told_when_its_end_is_reached(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", 1 << 10)
    packed = gzip.compress(b"".join(b"%d,%d\n" % (i, i * 7919) for i in range(5000)))
    table = open_table(write(packed[:-100], "t.csv.gz"), AUTO)
    with pytest.raises(GraphInputError, match="t.csv.gz: cannot be read: Truncated compressed stream"):
        list(table.chunks(["0"], SILENT))


@pytest.mark.parametrize("text", ["a,b", "a,b\n", "a,b\n\n\n"])
def test_a_header_alone_is_a_table_without_rows(write: Callable[..., Path], text: str) -> None:
    assert read_column(write(text), "a", as_int64) == []
