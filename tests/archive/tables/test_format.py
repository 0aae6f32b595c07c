"""How a table of text is laid out is what its user says, or what its file shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archive.tables.columns import as_text
from archive.tables.files import open_table
from archive.tables.format import TableFormat
from handler.errors import GraphInputError
from tests.archive.tables.reading import AUTO, read_column


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("t.csv", "a,b;c\n1,2\n", ("a", "b;c")),
        ("t.tsv", "a,b\tc\n1\t2\n", ("a,b", "c")),
        ("t.tab", "a,b\tc\n1\t2\n", ("a,b", "c")),
        ("t.txt", "a;b\n1;2\n", ("a", "b")),
        ("t.txt", "a|b|c,d\n", ("a", "b", "c,d")),
        ("t.txt", "a b\n", ("a", "b")),
        ("t.txt", "a b\tc\n", ("a b", "c")),
        ("t", "a\n", ("a",)),
        ("t.csv", "1,-2.5,1e3\n", ("0", "1", "2")),
        ("t.csv", "1,,2\n", ("0", "1", "2")),
        ("t.csv", "1,b\n", ("1", "b")),
        ("t.csv", ' "a, b" , c \n', ('"a', 'b"', "c")),
        ("t.csv", '"a, b", c \n', ("a, b", "c")),
        ("t.csv", "\ufeffa,b\n", ("a", "b")),
        ("t.csv", "# 1,2,3\n\n% x\na,b\n", ("a", "b")),
    ],
)
def test_the_first_line_and_the_name_say_how_a_table_is_laid_out(
    write: Callable[..., Path], name: str, text: str, columns: tuple[str, ...]
) -> None:
    assert open_table(write(text, name), AUTO).columns == columns


def test_the_user_can_say_how_a_table_is_laid_out(write: Callable[..., Path]) -> None:
    path = write("1;a\n2;b\n")
    assert open_table(path, TableFormat(delimiter=";", header=True)).columns == ("1", "a")
    assert read_column(path, "1", as_text, TableFormat(delimiter=";", header=False)) == ["a", "b"]


@pytest.mark.parametrize("delimiter", ["", ",,", "é", "\n", '"', "1", "."])
def test_a_delimiter_is_one_ascii_character(delimiter: str) -> None:
    with pytest.raises(GraphInputError, match="a delimiter must be one ASCII character"):
        TableFormat(delimiter=delimiter)
