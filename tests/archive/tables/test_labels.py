"""Classes are numbered by name; parts of the data are known by theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from archive.tables.bad_rows import BadRows, RowCheck
from archive.tables.files import open_table
from archive.tables.labels import LabelColumn, as_split
from handler.errors import GraphInputError
from handler.graph.progress import SILENT
from tests.archive.tables.reading import AUTO, read_column


@pytest.mark.parametrize(
    ("names", "label", "classes"),
    [
        (["b", "a", "", " a "], [1, 0, -1, 0], ("a", "b")),
        (["10", "9", "-1"], [2, 1, 0], ("-1", "9", "10")),
        (["10", "9", "x"], [0, 1, 2], ("10", "9", "x")),
    ],
)
def test_classes_ascend_by_name_or_number(
    write: Callable[..., Path], names: list[str], label: list[int], classes: tuple[str, ...]
) -> None:
    path = write("y,z\n" + "".join(f"{name},\n" for name in names))
    column = LabelColumn("y")
    for chunk in open_table(path, AUTO).chunks(["y"], SILENT):
        column.append(column.read(RowCheck(chunk, BadRows(path, skip=False))))
    labels = column.finish()
    assert (labels.label.tolist(), labels.names) == (label, classes)


def test_a_split_is_train_val_test_or_nothing(write: Callable[..., Path]) -> None:
    path = write("s,z\ntest,\n,\n train ,\nval,\nTest,\n")
    assert read_column(path, "s", as_split, skip=True) == [3, 0, 1, 2]
    with pytest.raises(GraphInputError, match="t.csv:6: column 's': 'Test' is not train, val, test or empty"):
        read_column(path, "s", as_split)
