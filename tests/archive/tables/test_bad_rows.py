"""Bad rows are told by line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from archive.tables.bad_rows import BadRows, RowCheck
from archive.tables.columns import as_int64
from archive.tables.files import open_table
from handler.graph.progress import SILENT
from tests.archive.tables.reading import AUTO


def test_bad_rows_are_told_in_the_order_of_lines_and_once_each(write: Callable[..., Path]) -> None:
    path = write("a,b\n1,x\nx,y\nx,2\n3\n" + "z,1\n" * 9)
    bad_rows = BadRows(path, skip=True)
    (chunk,) = open_table(path, AUTO).chunks(["a", "b"], SILENT)
    check = RowCheck(chunk, bad_rows)
    as_int64(check, "a")
    as_int64(check, "b")
    check.report()
    assert bad_rows.num_rows == bad_rows.num_skipped == 13
    assert [message.removeprefix(f"{path}:") for message in bad_rows.messages] == [
        "2: column 'b': 'x' is not an integer",
        "3: column 'a': 'x' is not an integer",
        "4: column 'a': 'x' is not an integer",
        "5: has 1 columns, not 2",
        "6: column 'a': 'z' is not an integer",
    ]
