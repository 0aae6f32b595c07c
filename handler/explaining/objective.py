"""What number of a model's output is explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from handler.errors import MalformedRequest
from handler.explaining.requests import ExplainOptions
from handler.model.exported import Differentiable, Model
from handler.model.signature import Signature


@dataclass(frozen=True)
class Objective:
    """A number for each copy of what is explained, by what the model says of its seeds.

    Args:
        told: which it is, as an answer says.
        column: of the prediction, where one of several is explained.
        direction: float32 [1, embedding_dim], of the embedding, where the model says nothing else.
    """

    told: dict[str, Any]
    model: Model
    column: int | None = None
    direction: Tensor | None = None

    def __call__(self, embedding: Tensor, prediction: Tensor) -> Tensor:
        """float32 [num_copies].

        Args:
            embedding: float32 [num_seeds, embedding_dim]; of pairs, both ends of each one after the other.
            prediction: float32 [num_seeds, prediction_dim].
        """
        if "link" in self.told:
            return self._link_score(embedding[0::2], embedding[1::2])
        if self.column is None:
            assert self.direction is not None  # noqa: S101 - as `choose_objective` has seen to
            return (embedding * self.direction).sum(dim=1)
        chosen = prediction[:, self.column]
        signature = self.model.signature
        if "label" not in self.told or signature.multi_label or prediction.shape[1] == 1:
            return chosen  # of several labels, each is a log-odds already
        others = prediction.clone()
        others[:, self.column] = -torch.inf
        return chosen - torch.logsumexp(others, dim=1)

    def _link_score(self, source: Tensor, target: Tensor) -> Tensor:
        if source.requires_grad and isinstance(self.model, Differentiable):
            return self.model.differentiable_score(source, target)
        return torch.from_numpy(self.model.score(source.numpy(), target.numpy()))


def choose_objective(
    model: Model, options: ExplainOptions, num_seeds: int, embedding: Tensor, prediction: Tensor
) -> Objective:
    """What is explained of one node, or of one pair.

    Args:
        num_seeds: 1 or 2.
        embedding, prediction: what the model says of them.

    Raises:
        MalformedRequest: the model has no such label or target, or scores no links.
    """
    signature = model.signature
    _check(signature, options, num_seeds)
    if num_seeds == 2:
        return Objective({"link": True}, model)
    if signature.labels:
        column = (
            int(prediction[0].argmax()) if options.label is None else signature.labels.index(options.label)
        )
        return Objective({"label": signature.labels[column]}, model, column)
    if signature.targets:
        column = 0 if options.target is None else signature.targets.index(options.target)
        return Objective({"target": signature.targets[column]}, model, column)
    length = torch.linalg.vector_norm(embedding)
    return Objective({"embedding": True}, model, direction=(embedding / length.clamp_min(1e-12)).detach())


def _check(signature: Signature, options: ExplainOptions, num_seeds: int) -> None:
    if num_seeds == 2 and signature.link_score is None:
        raise MalformedRequest("this model scores no pairs of nodes; its task is not `link`")
    for name, asked, known in (
        ("label", options.label, signature.labels),
        ("target", options.target, signature.targets),
    ):
        if asked is not None and (asked not in known or num_seeds == 2):
            given = ", ".join(known[:20]) or "none"
            raise MalformedRequest(f"{asked!r:.80} is no {name} of this model: {given}")
