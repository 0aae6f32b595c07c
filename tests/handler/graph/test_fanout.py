"""Hops are expanded by what the layers above need."""

from __future__ import annotations

import pytest

from handler.errors import MalformedRequest
from handler.graph.fanout import FanoutPlan


def test_a_hop_is_expanded_by_the_largest_fanout_of_its_layers() -> None:
    assert FanoutPlan.of((10, 5)).hop_fanouts == (10, 10)
    assert FanoutPlan.of((5, 10)).hop_fanouts == (10, 5)
    assert FanoutPlan.of((2, 7, 3)).hop_fanouts == (7, 7, 2)


def test_the_largest_tree() -> None:
    assert FanoutPlan.of((10, 10)).max_tree_nodes == 111
    assert FanoutPlan.of((2, 3)).max_tree_nodes == 1 + 3 + 6


def test_limits() -> None:
    plan = FanoutPlan.of((5, 10))
    assert plan.limited(None, None) is plan
    assert plan.limited(1, None).hop_fanouts == (10,)
    assert plan.limited(None, 7).layer_fanouts == (5, 7)
    assert plan.limited(2, 2).hop_fanouts == (2, 2)


def test_more_than_the_model_has_is_refused_with_both_numbers() -> None:
    plan = FanoutPlan.of((5, 10))
    with pytest.raises(MalformedRequest, match="num_hops is 3, but this model has 2 layers"):
        plan.limited(3, None)
    with pytest.raises(MalformedRequest, match="num_neighbors is 11, but this model samples at most 10"):
        plan.limited(None, 11)
