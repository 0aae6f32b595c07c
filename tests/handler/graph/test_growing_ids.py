"""Ids that come bit by bit are numbered as a dictionary would number them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from handler.errors import GraphInputError
from handler.graph import growing_ids
from handler.graph.growing_ids import GrowingIntIds, GrowingStrIds
from handler.graph.ids import StrIds

_INT = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
_STR = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@pytest.fixture(autouse=True)
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing_ids, "_FIRST_IDS", 2)
    monkeypatch.setattr(growing_ids, "_FIRST_BYTES", 4)


@given(st.lists(st.lists(_INT, max_size=30), max_size=4), st.lists(_INT, max_size=10))
def test_integers_are_numbered_in_the_order_in_which_they_first_came(
    batches: list[list[int]], others: list[int]
) -> None:
    growing, expected = GrowingIntIds(), dict[int, int]()
    for batch in batches:
        index = growing.add(np.array(batch, dtype=np.int64))
        assert index.tolist() == [expected.setdefault(node_id, len(expected)) for node_id in batch]
    assert len(growing) == len(expected)
    assert growing.ids.tolist() == list(expected)
    found = growing.find(np.array(others, dtype=np.int64))
    assert found.tolist() == [expected.get(node_id, -1) for node_id in others]
    ids = growing.finish()
    assert ids.id_of(np.arange(len(ids))) == list(expected)


@given(st.lists(st.lists(_STR, max_size=30), max_size=4), st.lists(_STR, max_size=10))
def test_strings_are_numbered_in_the_order_in_which_they_first_came(
    batches: list[list[str]], others: list[str]
) -> None:
    growing, expected = GrowingStrIds(), dict[str, int]()
    for batch in batches:
        index = growing.add(*_utf8(batch))
        assert index.tolist() == [expected.setdefault(node_id, len(expected)) for node_id in batch]
    assert len(growing) == len(expected)
    assert growing.data.tobytes() == "".join(expected).encode()
    assert growing.find(*_utf8(others)).tolist() == [expected.get(node_id, -1) for node_id in others]
    ids = growing.finish()
    assert ids.id_of(np.arange(len(ids))) == list(expected)


def test_offsets_need_not_start_at_zero() -> None:
    data, offsets = _utf8(["skipped", "a", "", "a"])
    growing = GrowingStrIds()
    assert growing.add(data, offsets[1:]).tolist() == [0, 1, 0]
    assert growing.finish().id_of(np.arange(2)) == ["a", ""]


def test_many_strings_of_any_length_are_found_again() -> None:
    strs = [str(number % 700) * (number % 3) for number in range(2000)]
    growing, expected = GrowingStrIds(), dict[str, int]()
    index = growing.add(*_utf8(strs))
    assert index.tolist() == [expected.setdefault(node_id, len(expected)) for node_id in strs]
    assert growing.find(*_utf8(["x", *strs])).tolist() == [-1, *index.tolist()]


def test_an_empty_string_may_be_the_first_and_all() -> None:
    growing = GrowingStrIds()
    assert growing.add(*_utf8(["", "abcd", "", "abcd"])).tolist() == [0, 1, 0, 1]
    assert growing.find(*_utf8(["abcd", ""])).tolist() == [1, 0]


def test_ids_finish_in_another_order() -> None:
    ints, strs = GrowingIntIds(), GrowingStrIds()
    ints.add(np.array([30, 10, 20], dtype=np.int64))
    strs.add(*_utf8(["ccc", "a", "bb"]))
    order = np.array([1, 2, 0])
    assert ints.finish(order).id_of(np.arange(3)) == [10, 20, 30]
    assert strs.finish(order).id_of(np.arange(3)) == ["a", "bb", "ccc"]
    assert len(ints) == len(strs) == 0


def test_integers_that_are_their_own_indices_need_no_storage() -> None:
    growing = GrowingIntIds()
    growing.add(np.array([2, 0, 1], dtype=np.int64))
    assert growing.finish(np.array([1, 2, 0])).kind == "range"
    growing.add(np.array([2, 0, 1], dtype=np.int64))
    assert growing.finish().kind == "int"
    growing.add(np.array([1, 2], dtype=np.int64))
    assert growing.finish().kind == "int"


def test_no_ids_finish_too() -> None:
    assert len(GrowingIntIds().finish()) == 0
    assert len(GrowingStrIds().finish()) == 0


def test_string_ids_come_as_utf8() -> None:
    ids = StrIds.of_utf8(*_utf8(["é", "e"]))
    assert ids.index_of(["e", "é", "x"]).tolist() == [1, 0, -1]
    with pytest.raises(GraphInputError, match="node id 'é' is given twice"):
        StrIds.of_utf8(*_utf8(["é", "e", "é"]))


def _utf8(ids: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    encoded = [node_id.encode() for node_id in ids]
    offsets = np.cumsum([0, *(len(text) for text in encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets
