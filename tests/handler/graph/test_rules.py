"""Rules that cannot be meant are refused when they are made."""

from __future__ import annotations

import math

import msgspec
import pytest

from handler.errors import GraphInputError
from handler.graph.rules import EdgeRules


def test_only_kept_duplicates_may_stand_side_by_side() -> None:
    assert EdgeRules(False, "keep", True).multigraph
    assert not EdgeRules(duplicates="sum").multigraph
    assert not EdgeRules().multigraph


def test_rules_survive_json() -> None:
    rules = EdgeRules(True, "sum", False, 3.5)
    assert msgspec.json.decode(msgspec.json.encode(rules), type=EdgeRules) == rules


@pytest.mark.parametrize("age", [0.0, -1.0, math.inf, math.nan])
def test_an_age_that_is_none_is_refused(age: float) -> None:
    with pytest.raises(GraphInputError, match="max_edge_age must be positive and finite"):
        EdgeRules(max_edge_age=age)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(b'{"max_edge_age": %a}' % age, type=EdgeRules)
