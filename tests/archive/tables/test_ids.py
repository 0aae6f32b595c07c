"""Ids are integers if all that come first are; a few others among many integers are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archive.tables.files import open_table
from archive.tables.ids import IntTableIds, StrTableIds, TableIds, ids_for
from handler.graph.progress import SILENT
from tests.archive.tables.reading import AUTO


@pytest.fixture
def chosen(write: Callable[..., Path]) -> Callable[[str], TableIds]:
    def chosen(text: str) -> TableIds:
        path = write(text)
        chunks = open_table(path, AUTO).chunks(["a", "b"], SILENT)
        return ids_for("auto", path, chunks, ["a", "b"])[0]

    return chosen


def test_ids_are_integers_only_if_all_are(chosen: Callable[[str], TableIds]) -> None:
    assert isinstance(chosen("a,b\n1,2\n,-3\n"), IntTableIds)
    assert isinstance(chosen("a,b\n"), IntTableIds)
    assert isinstance(chosen("a,b\n1,2\n3,x\n"), StrTableIds)


def test_the_first_of_a_few_that_are_no_integers_is_told(
    chosen: Callable[[str], TableIds], tmp_path: Path
) -> None:
    assert chosen("a,b\n1,2\n\n3,07\nx,5\n").note == (
        f"{tmp_path}/t.csv:4: column 'b': '07' is not a plain integer, so node ids are text, though 4 of the"
        " first 6 look like integers (for integers, use --ids int)"
    )


def test_text_that_is_no_surprise_is_not_told(chosen: Callable[[str], TableIds]) -> None:
    assert chosen("a,b\nx,1\ny,2\n").note is None
    assert chosen("a,b\n1,2\n").note is None


def test_a_type_that_the_user_chose_is_not_told(write: Callable[..., Path]) -> None:
    path = write("a,b\n1,2\n3,x\n")
    chunks = open_table(path, AUTO).chunks(["a", "b"], SILENT)
    assert ids_for("str", path, chunks, ["a", "b"])[0].note is None
