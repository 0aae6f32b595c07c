"""How new nodes are answered: in stages by their age, each with a method and what to do where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from handler.settings import ColdMethod, ColdStage

_HOUR_S = 3600.0


class NodeFacts(Protocol):
    """What a method needs to know of a node."""

    def has_features(self) -> bool:
        """Whether any of its features is not zero."""
        ...

    def has_neighbors(self) -> bool:
        """Whether it has any neighbors to sample."""
        ...

    def has_mean(self) -> bool:
        """Whether there are precomputed answers to take the mean of."""
        ...


@dataclass(frozen=True)
class Decision:
    """How a node is answered.

    Args:
        stage: `old`, or `until_24h` and so on; as metrics name it.
        factor: of `expanded`; else 1.
        why: for people.
    """

    stage: str
    method: ColdMethod
    factor: int
    why: str


class ColdStart:
    """The policy for new nodes.

    Args:
        stages: in any order; the one that ends first counts first.
    """

    def __init__(self, stages: Sequence[ColdStage]) -> None:
        self._stages = sorted(stages, key=lambda stage: stage.until_h)

    @property
    def is_empty(self) -> bool:
        """Whether all nodes are answered alike."""
        return not self._stages

    def decide(self, created: float, now: float, facts: NodeFacts) -> Decision:
        """How a node is answered.

        Args:
            created: when it was added, in seconds since 1970; 0 where nobody knows, which makes it old.
            now: the same of now.
        """
        if created <= 0:
            return Decision("old", "normal", 1, "it has no creation time: the graph was built with it")
        age_h = max(0.0, now - created) / _HOUR_S
        for stage in self._stages:
            if age_h < stage.until_h:
                return _within(stage, age_h, facts)
        return Decision("old", "normal", 1, f"it is {age_h:.1f} h old, which is beyond all stages")


def _within(stage: ColdStage, age_h: float, facts: NodeFacts) -> Decision:
    name = f"until_{stage.until_h:g}h"
    reasons = [f"it is {age_h:.1f} h old, of {stage.until_h:g} h of this stage"]
    for method in (stage.method, *stage.fallbacks):
        lacking = _lacking(method, facts)
        if lacking is None:
            factor = stage.factor if method == "expanded" else 1
            return Decision(name, method, factor, "; ".join(reasons))
        reasons.append(f"not `{method}`, because {lacking}")
    return Decision(name, "normal", 1, "; ".join(reasons))


def _lacking(method: ColdMethod, facts: NodeFacts) -> str | None:
    """What a method has nothing to go by for; none if it has all."""
    if method == "features" and not facts.has_features():
        return "it has no features"
    if method == "expanded" and not facts.has_neighbors():
        return "it has no neighbors"
    if method == "mean" and not facts.has_mean():
        return "nothing is precomputed"
    return None
