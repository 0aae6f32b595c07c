"""Ids are found exactly, and by their own type alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import GraphInputError
from handler.graph.ids import IntIds, RangeIds, StrIds
from tests import reference

_INTS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60)
_STRS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), unique=True, max_size=60)


@given(_INTS, _INTS)
def test_integer_ids_are_found(ids: list[int], others: list[int]) -> None:
    index = IntIds.build(np.array(ids, dtype=np.int64))
    wanted = ids + others
    assert index.index_of(wanted).tolist() == [_place(ids, node_id) for node_id in wanted]
    assert index.id_of(np.arange(len(ids))) == ids
    assert index.hashes().tolist() == [reference.hash_id(node_id) for node_id in ids]


@given(_STRS, _STRS)
def test_string_ids_are_found(ids: list[str], others: list[str]) -> None:
    index = StrIds.build(ids)
    wanted = ids + others
    assert index.index_of(wanted).tolist() == [_place(ids, node_id) for node_id in wanted]
    assert index.id_of(np.arange(len(ids))) == ids
    assert index.hashes().tolist() == [reference.hash_id(node_id) for node_id in ids]


def test_range_ids_are_positions() -> None:
    index = RangeIds(3)
    assert index.index_of([0, 2, 3, -1]).tolist() == [0, 2, -1, -1]
    assert index.hashes().tolist() == [reference.hash_id(node_id) for node_id in range(3)]


def test_the_hash_of_an_integer_does_not_depend_on_how_ids_are_stored() -> None:
    stored = IntIds.build(np.array([2, 0, 1], dtype=np.int64))
    assert stored.hashes().tolist() == RangeIds(3).hashes()[[2, 0, 1]].tolist()


def test_a_repeated_id_is_refused_by_name() -> None:
    with pytest.raises(GraphInputError, match="node id 5 is given twice"):
        IntIds.build(np.array([5, 6, 5], dtype=np.int64))
    with pytest.raises(GraphInputError, match="node id 'é' is given twice"):
        StrIds.build(["é", "e", "é"])


def test_looking_up_nothing_finds_nothing() -> None:
    for index in (RangeIds(3), IntIds.build(np.array([7], dtype=np.int64)), StrIds.build(["a"])):
        assert index.index_of([]).tolist() == []


def _place(ids: list[int] | list[str], node_id: object) -> int:
    return ids.index(node_id) if node_id in ids else -1  # type: ignore[arg-type]
