"""Ids go on where those of the snapshot end, and are found like them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.graph.ids import IntIds, NodeIds, RangeIds, StrIds
from handler.graph.live_ids import LiveIds

_INT = st.integers(-(2**63), 2**63 - 1)
_STR = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)


def _ids(kind: str, ids: Sequence[int | str]) -> NodeIds:
    if kind == "range":
        return RangeIds(len(ids))
    if kind == "int":
        return IntIds.build(np.array(ids, dtype=np.int64))
    return StrIds.build([str(node_id) for node_id in ids])


@given(st.sampled_from(["range", "int", "str"]), st.data())
def test_all_ids_are_found_and_named(kind: str, data: st.DataObject) -> None:
    names = st.lists(_STR if kind == "str" else _INT | st.integers(0, 9), unique=True, max_size=12)
    drawn = data.draw(names)
    split = data.draw(st.integers(0, len(drawn)))
    base = list(range(split)) if kind == "range" else drawn[:split]
    new = [node_id for node_id in drawn[split:] if node_id not in set(base)]
    ids = LiveIds(_ids(kind, base))
    middle = len(new) // 2
    ids.add(new[:middle])
    ids.add(new[middle:])
    everyone = [*base, *new]
    assert len(ids) == len(everyone)
    assert ids.index_of(everyone).tolist() == list(range(len(everyone)))
    assert ids.id_of(np.arange(len(everyone))) == everyone
    unknown = [node_id for node_id in data.draw(names) if node_id not in set(everyone)]
    assert (ids.index_of(unknown) == -1).all()
    merged = ids.merged()
    assert merged.id_of(np.arange(len(everyone))) == everyone
    assert np.array_equal(merged.hashes()[len(base) :], ids.new_hashes(0))


@pytest.mark.parametrize(
    ("kind", "names"), [("int", list(range(100, 3000))), ("str", [f"n{i}" for i in range(3000)])]
)
def test_the_last_one_can_be_taken_back(kind: str, names: list[int | str]) -> None:
    ids = LiveIds(_ids(kind, names[:2]))
    ids.add(names[2:-1])
    ids.add(names[-1:])
    ids.drop_last()
    assert len(ids) == len(names) - 1
    assert ids.index_of(names[-2:]).tolist() == [len(names) - 2, -1]
    ids.add(names[-1:])
    assert ids.index_of(names).tolist() == list(range(len(names)))


def test_ranges_that_go_on_stay_ranges() -> None:
    ids = LiveIds(RangeIds(3))
    ids.add([3, 4])
    assert isinstance(ids.merged(), RangeIds)
    ids.add([7])
    assert isinstance(ids.merged(), IntIds)
