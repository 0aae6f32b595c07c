"""A journal knows its file again, and what had been sent of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from archive.ingest.batches import Batch
from archive.ingest.journal import Journal, open_journal
from archive.ingest.rows import ColumnRows, Segment
from handler.errors import GraphInputError

_OPTIONS = {"kind": "edges"}


def _batch(line: int, content: bytes = b"{}") -> Batch:
    lines = np.array([line, line + 1])
    return Batch(
        (Segment("add_nodes", ColumnRows({"node_id": [1, 2]}), lines, np.zeros_like(lines)),), content
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "e.csv"
    path.write_text("1,2\n")
    return path


def _open(
    file: Path, server: str = "here", options: dict[str, str] = _OPTIONS, *, restart: bool = False
) -> Journal:
    return open_journal(file.parent / "state" / "e.json", file, server, options, restart=restart)


def test_it_goes_on_with_what_may_have_arrived(file: Path) -> None:
    first, second, third = _batch(1), _batch(3), _batch(5)
    journal = _open(file)
    journal.sending(first)
    journal.acknowledged(first, 2)
    journal.sending(second)
    again = _open(file)
    assert again.state == journal.state
    assert (again.state.num_mutations, again.state.last_line, again.state.last_seq) == (2, 2, 2)
    assert [known.place.line for known in again.state.sent] == [3]
    assert list(again.remaining(iter([second, third]))) == [second, third]
    assert again.request_id(second) == journal.request_id(second)
    again.sending(second)
    again.acknowledged(second, 4)
    assert list(_open(file).remaining(iter([second, third]))) == [third]


def test_a_file_with_more_at_its_end_is_the_same(file: Path) -> None:
    journal = _open(file)
    journal.sending(_batch(1))
    file.write_text("1,2\n3,4\n")
    assert _open(file).state == journal.state


def test_another_file_begins_anew(file: Path) -> None:
    journal = _open(file)
    journal.sending(_batch(1))
    file.write_text("5,6\n")
    other = _open(file)
    assert other.replaces
    assert other.state.sent == ()
    assert other.state.run != journal.state.run


def test_lines_that_are_others_than_were_sent_are_told(file: Path) -> None:
    journal = _open(file)
    journal.sending(_batch(1))
    for found in ([_batch(1, b"other")], [_batch(2)], []):
        with pytest.raises(GraphInputError, match="is another from line 1 on"):
            list(_open(file).remaining(iter(found)))


def test_the_same_file_has_the_same_request_ids_without_its_journal(file: Path) -> None:
    assert _open(file).state.run == _open(file).state.run
    assert _open(file).state.run != _open(file, options={"kind": "removals"}).state.run


def test_a_restart_has_other_request_ids(file: Path) -> None:
    journal = _open(file)
    journal.sending(_batch(1))
    restarted = _open(file, restart=True)
    assert restarted.state.sent == ()
    assert restarted.state.run != journal.state.run
    restarted.sending(_batch(1))
    assert _open(file).state == restarted.state


def test_other_options_or_another_server_are_refused(file: Path) -> None:
    _open(file).sending(_batch(1))
    with pytest.raises(
        GraphInputError, match="was begun with --kind edges, not --kind edges --weight w: give"
    ):
        _open(file, options=_OPTIONS | {"weight": "w"})
    with pytest.raises(GraphInputError, match="was sent to here, not to there"):
        _open(file, "there")


def test_a_broken_journal_is_named(file: Path) -> None:
    _open(file).sending(_batch(1))
    (file.parent / "state" / "e.json").write_text("{")
    with pytest.raises(GraphInputError, match="e.json: does not say how far"):
        _open(file)
