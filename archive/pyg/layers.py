"""Minibatches of PyG's loaders, as layered models take them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from handler.model.signature import EdgeInput


def layered_arguments(
    batch: Data, layer_fanouts: tuple[int, ...], edge_inputs: tuple[EdgeInput, ...] = ()
) -> list[Tensor]:
    """What a layered model without degrees is called with, for a batch of `archive.pyg.loaders`.

    Its nodes lie by hop, as those of a layered model do, and each node's edges side by side.

    Args:
        layer_fanouts: f(1) to f(L), for the layer applied first to the one applied last.
    """
    arguments = [batch.x]
    target = batch.edge_index[1]
    for number, fanout in enumerate(layer_fanouts, start=1):
        is_target = batch.hop <= len(layer_fanouts) - number
        used = is_target[target] & (batch.edge_rank < fanout)
        count = torch.bincount(target[used], minlength=int(is_target.sum()))
        ptr = torch.cat([count.new_zeros(1), count.cumsum(0)])
        arguments += [batch.edge_index[:, used], ptr, *(batch[name][used] for name in edge_inputs)]
    return arguments
