"""The file of a link head: a score from the embeddings of both ends."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from archive.export.parity import TOLERANCE, relative_difference
from handler.errors import ModelError
from handler.model.exported import Model

_PAIR_COUNTS = (1, 2, 7, 64)


class LinkHead(nn.Module):
    """Calls a head with both embeddings, or with them side by side if it takes one argument.

    Raises:
        ModelError: it takes neither.
    """

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head
        parameters = inspect.signature(head.forward).parameters.values()
        needed = [each for each in parameters if each.default is each.empty and each.kind != each.VAR_KEYWORD]
        if len(needed) not in {1, 2}:
            raise ModelError(
                f"the link head {type(head).__name__} takes {len(needed)} arguments: it must take the two"
                " embeddings, or one row of both side by side"
            )
        self.side_by_side = len(needed) == 1

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        if self.side_by_side:
            scores = self.head(torch.cat([source, target], dim=-1))
        else:
            scores = self.head(source, target)
        flat: Tensor = scores.reshape(-1)
        return flat


def example_pair(embedding_dim: int, num_pairs: int = 7) -> tuple[Tensor, Tensor]:
    """Random embeddings of both ends of some pairs."""
    generator = torch.Generator().manual_seed(num_pairs)
    source, target = torch.randn((2, num_pairs, embedding_dim), generator=generator)
    return source, target


def check_head(head: LinkHead, exported: Model) -> None:
    """Compare the exported head with the eager one; a difference is a `ModelError`."""
    for count in _PAIR_COUNTS:
        source, target = example_pair(exported.signature.embedding_dim, count)
        with torch.no_grad():
            wanted = head(source, target).numpy()
        if wanted.shape != (count,):
            raise ModelError(f"the link head gives {len(wanted)} scores for {count} pairs")
        found = exported.score(source.numpy(), target.numpy())
        difference = relative_difference(found, wanted)
        if not difference <= TOLERANCE:
            raise ModelError(f"the exported link head differs from the eager one by {difference:.1e}")
