"""Finds what mattered of a sample: nodes, edges and features, by gradients or by leaving them out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from handler.errors import MalformedRequest, NoGradients
from handler.explaining.copies import Changes, Copies, Subject
from handler.explaining.objective import Objective, choose_objective
from handler.explaining.requests import ExplainOptions, Method
from handler.graph.fanout import FanoutPlan
from handler.inputs import ModelInputs
from handler.model.exported import Model

_STEPS = (8, 32, 128)
_EXACT_ENOUGH = 0.01  # of the score's difference to the baseline's may be missing
_CHECKED_EDGES = 5
_MOST_FEATURES = 256  # that occlusion tries: those with the largest values
_AS_IS_AND_NOTHING = np.array([1, 0], dtype=np.float32)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Importance:
    """What mattered; positive is what raised the score.

    Args:
        nodes: float64 [num_tree_nodes].
        edges: float64 [num_edges], of the trees, in their order.
        features: float64 [feature_dim].
        complete: whether all was computed as exactly as it should be, within the time.
    """

    nodes: NDArray[np.float64]
    edges: NDArray[np.float64]
    features: NDArray[np.float64]
    complete: bool


@dataclass(frozen=True)
class Fidelity:
    """The scores without the most important edges, and with them alone.

    Args:
        num_edges: how many these are, as edges of the graph.
    """

    num_edges: int
    without: float
    only: float


@dataclass(frozen=True)
class Explanation:
    """Why a node or a pair is scored as it is.

    Args:
        baseline: the score if all features were zero.
    """

    subject: Subject
    objective: Objective
    method: Method
    score: float
    baseline: float
    importance: Importance
    fidelity: Fidelity


class Explainer:
    """Explains what one model says on one graph.

    *Integrated gradients* (Sundararajan et al., 2017) go from all features zero to those that are, and say by
    how much each feature of each tree node has moved the score: their sum is the difference between both
    scores. All that a node contributes goes through its edge, so an edge has what lies below it. *Occlusion*
    leaves out one edge, node or feature at a time and says how the score changes: slower, but it needs no
    gradients, and so holds for every format.
    """

    def __init__(self, inputs: ModelInputs, model: Model) -> None:
        self._copies = Copies(inputs, model)
        self._model = model
        self._has_gradients = True

    def explain(
        self,
        index: NDArray[np.int64],
        plan: FanoutPlan,
        as_of: float | None,
        options: ExplainOptions,
        deadline_s: float,
    ) -> Explanation:
        """Explain a node, or the link between two.

        Args:
            index: int64 [1] or [2].
            deadline_s: by the monotonic clock; after it, no more is begun than is needed for an answer.

        Raises:
            RequestError: it cannot be sampled, or the model has not what is asked for.
            OutOfMemory: there is not enough memory.
        """
        subject = self._copies.sample(index, plan, as_of)
        embedding, prediction = self._copies.outputs(subject)
        objective = choose_objective(self._model, options, len(index), embedding, prediction)
        importance, method = self._importance(subject, objective, options.method, deadline_s)
        as_is, nothing = self._scores(subject, objective, Changes(2, scale=_AS_IS_AND_NOTHING))
        fidelity = self._fidelity(subject, objective, importance)
        return Explanation(subject, objective, method, as_is, nothing, importance, fidelity)

    def _importance(
        self, subject: Subject, objective: Objective, method: Method | None, deadline_s: float
    ) -> tuple[Importance, Method]:
        if method != "occlusion" and self._has_gradients:
            try:
                return self._by_gradients(subject, objective, deadline_s), "integrated_gradients"
            except NoGradients:
                self._has_gradients = False
            except RuntimeError:
                _log.exception("the model cannot be differentiated: explanations go on by occlusion")
                self._has_gradients = False
        if method == "integrated_gradients":
            raise MalformedRequest(
                "this model's file cannot be differentiated: ask for the method `occlusion`"
            )
        return self._by_occlusion(subject, objective, deadline_s), "occlusion"

    def _by_gradients(self, subject: Subject, objective: Objective, deadline_s: float) -> Importance:
        """Integrated gradients, by Gauss-Legendre quadrature with more steps until the sum is right."""
        x = self._copies.features(subject).astype(np.float64)
        as_is, nothing = self._scores(subject, objective, Changes(2, scale=_AS_IS_AND_NOTHING))
        by_feature, exact = np.zeros_like(x), False
        for steps in _STEPS:
            at, weight = np.polynomial.legendre.leggauss(steps)
            scale = ((at + 1) / 2).astype(np.float32)
            _, gradients = self._copies.gradients(subject, objective, Changes(steps, scale=scale))
            by_feature = x * np.einsum("s,snd->nd", weight / 2, gradients)
            missing = abs(by_feature.sum() - (as_is - nothing))
            exact = missing <= _EXACT_ENOUGH * max(abs(as_is - nothing), 0.01 * abs(as_is), 1e-6)
            if exact or time.monotonic() > deadline_s:
                break
        nodes = by_feature.sum(axis=1)
        return Importance(nodes, _below(subject, nodes), by_feature.sum(axis=0), exact)

    def _by_occlusion(self, subject: Subject, objective: Objective, deadline_s: float) -> Importance:
        trees, x = subject.trees, self._copies.features(subject)
        (as_is,) = self._scores(subject, objective, Changes(1))
        edge_of, num_edges = distinct_edges(subject)
        node_of, num_nodes = _numbered(trees.node)
        largest = np.abs(x).max(axis=0)
        tried = np.argsort(-largest, kind="stable")[: min(_MOST_FEATURES, np.count_nonzero(largest))]
        edges, edges_done = self._drops(
            subject, objective, as_is, deadline_s, num_edges,
            lambda numbers: {"kept_edges": edge_of[None, :] != numbers[:, None]},
        )  # fmt: skip
        nodes, nodes_done = self._drops(
            subject, objective, as_is, deadline_s, num_nodes,
            lambda numbers: {"kept_nodes": node_of[None, :] != numbers[:, None]},
        )  # fmt: skip
        found, features_done = self._drops(
            subject, objective, as_is, deadline_s, len(tried),
            lambda numbers: {"without_feature": tried[numbers]},
        )  # fmt: skip
        features = np.zeros(x.shape[1])
        features[tried] = found
        complete = edges_done and nodes_done and features_done
        # What stands several times was left out everywhere at once: it counts once.
        return Importance(_once(nodes, node_of), _once(edges, edge_of), features, complete)

    def _drops(
        self,
        subject: Subject,
        objective: Objective,
        as_is: float,
        deadline_s: float,
        count: int,
        change: Callable[[NDArray[np.int64]], dict[str, Any]],
    ) -> tuple[NDArray[np.float64], bool]:
        """By how much the score falls without each of so many things; whether there was time for all."""
        drops, done = np.zeros(count), 0
        if count:
            for scores in self._copies.scores(subject, objective, Changes(count, **change(np.arange(count)))):
                drops[done : done + len(scores)] = as_is - scores
                done += len(scores)
                if time.monotonic() > deadline_s:
                    break
        return drops, done == count

    def _fidelity(self, subject: Subject, objective: Objective, importance: Importance) -> Fidelity:
        """Leave the most important edges out, and then all others but what leads from them to the seed."""
        edge_of, num_edges = distinct_edges(subject)
        total = np.bincount(edge_of, importance.edges, minlength=num_edges)
        chosen = np.argsort(-np.abs(total), kind="stable")[: min(_CHECKED_EDGES, num_edges)]
        is_chosen = np.isin(edge_of, chosen)
        leads = is_chosen.copy()
        # A tree's nodes come by hop: going backwards, each edge is met before that above it.
        edge_from = np.full(len(subject.trees.node), -1)
        edge_from[subject.trees.edge_index[0]] = np.arange(len(edge_of))
        for edge in range(len(edge_of) - 1, -1, -1):
            above = edge_from[subject.trees.edge_index[1, edge]]
            if leads[edge] and above >= 0:
                leads[above] = True
        without, only = self._scores(subject, objective, Changes(2, kept_edges=np.stack([~is_chosen, leads])))
        return Fidelity(len(chosen), without, only)

    def _scores(self, subject: Subject, objective: Objective, changes: Changes) -> list[float]:
        found: list[float] = np.concatenate(list(self._copies.scores(subject, objective, changes))).tolist()
        return found


def distinct_edges(subject: Subject) -> tuple[NDArray[np.int64], int]:
    """int64 [num_edges], a number for each edge of the trees by the nodes it joins; and how many there are.

    They are numbered in the order in which they are met, from the seed outwards.
    """
    ends = subject.trees.node[subject.trees.edge_index]
    pairs = np.ascontiguousarray(ends.T).view([("source", np.int64), ("target", np.int64)])[:, 0]
    return _numbered(pairs)


def _numbered(values: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """int64 [num_values], a number for each distinct value, in the order in which they come first."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse], len(first)


def _once(values: NDArray[np.float64], number: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each value where its number comes first, and zero where it comes again."""
    spread = np.zeros(len(number))
    _, first = np.unique(number, return_index=True)
    spread[first] = values[number[first]]
    return spread


def _below(subject: Subject, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [num_edges]: what each edge carries, which is what its child has and all below that."""
    child, parent = subject.trees.edge_index
    total, hop = nodes.copy(), subject.trees.hop
    for depth in range(int(hop.max(initial=0)), 0, -1):
        here = hop[child] == depth
        np.add.at(total, parent[here], total[child[here]])
    carried: NDArray[np.float64] = total[child]
    return carried
