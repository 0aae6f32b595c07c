"""What the log keeps of mutations is what was accepted, whole or in parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import LogCorrupt
from handler.graph.edges import EdgeFields
from handler.graph.mutations import Mutations, decode_mutations, encode_mutations, split_mutations
from tests.graphs import FEATURE_DIM
from tests.live import Change, changes

FIELDS = EdgeFields(weight=True, time=True, attr_dim=1)
IDS = [3, 5, 8]


def _lists(mutations: Mutations) -> list[object]:
    """All that it says, NaN as text."""
    removed, added = mutations.removed, mutations.added
    arrays = [mutations.featured, mutations.features, removed.source, removed.target, removed.time]
    arrays += [added.source, added.target, added.weight, added.time, added.attr]
    return [mutations.node_ids, *(None if array is None else repr(array.tolist()) for array in arrays)]


@given(changes(IDS))
def test_a_record_says_what_was_accepted(change: Change) -> None:
    mutations = change.to_mutations(len(IDS))
    read = decode_mutations(encode_mutations(mutations), FIELDS, FEATURE_DIM)
    assert _lists(read) == _lists(mutations)
    assert (read.created, read.first_node, len(read)) == (mutations.created, 3, len(mutations))


@given(changes(IDS), st.integers(1, 5), st.integers(1, 60))
def test_parts_say_the_same_in_order(change: Change, max_mutations: int, max_bytes: int) -> None:
    mutations = change.to_mutations(len(IDS))
    parts = split_mutations(mutations, max_mutations, max_bytes)
    assert sum(map(len, parts)) == len(mutations)
    assert all(0 < len(part) <= max_mutations for part in parts)
    num_nodes = len(IDS)
    for part in parts:
        assert part.first_node == num_nodes
        num_nodes += len(part.node_ids)
    assert [node_id for part in parts for node_id in part.node_ids] == mutations.node_ids
    for name in ("featured", "features"):
        joined = np.concatenate([getattr(mutations, name)[:0], *(getattr(part, name) for part in parts)])
        assert np.array_equal(joined, getattr(mutations, name))
    for kind in ("removed", "added"):
        for name, column in getattr(mutations, kind).columns().items():
            joined = np.concatenate([column[:0], *(getattr(part, kind).columns()[name] for part in parts)])
            assert np.array_equal(joined, column, equal_nan=column.dtype.kind == "f")


@pytest.mark.parametrize("data", [b"", b"\x93\x01", encode_mutations(Change().to_mutations(1))[:-4]])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(LogCorrupt, match="cannot be read"):
        decode_mutations(data, FIELDS, FEATURE_DIM)
