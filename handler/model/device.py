"""Brings arrays to the device that a model runs on, without waiting where that can be."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from handler.graph.live_features import LiveFeatures
from handler.graph.readable import ReadableFeatures


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; from pinned memory it is copied while the CPU goes on."""
    return tensor if tensor.device == device else tensor.to(device, non_blocking=True)


def for_device(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """An array as a tensor that can be copied to the device without waiting."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


class FeatureRows(Protocol):
    """Where the features of nodes are read from."""

    def gather(self, node: NDArray[np.int64]) -> Tensor:
        """float32 [num_nodes, feature_dim], the features of some nodes."""
        ...


class HostFeatures:
    """Features that are read from the mapped snapshot, into pinned memory where a GPU takes them."""

    def __init__(self, features: ReadableFeatures, device: torch.device) -> None:
        self._features = features
        self._pinned = device.type == "cuda"

    def gather(self, node: NDArray[np.int64]) -> Tensor:
        """See `FeatureRows`; on the CPU."""
        if not self._pinned:
            return torch.from_numpy(self._features.gather(node))
        # PyTorch keeps pinned memory for the next time, and does not give it out while it is being copied.
        rows = torch.empty((len(node), self._features.shape[1]), pin_memory=True)
        self._features.gather(node, out=rows.numpy())
        return rows


class ResidentFeatures:
    """All features of the graph, kept on the device: only node indices travel.

    Those that change later are read from the host, as are those of new nodes.
    """

    def __init__(self, features: ReadableFeatures, device: torch.device) -> None:
        self._device = device
        self._changing = features if isinstance(features, LiveFeatures) else None
        dtype = torch.float16 if features.dtype == np.float16 else torch.float32
        self._rows = torch.empty(features.shape, dtype=dtype, device=device)
        for start in range(0, features.shape[0], _ROWS_AT_ONCE):
            part = np.arange(start, min(start + _ROWS_AT_ONCE, features.shape[0]))
            self._rows[start : start + len(part)] = torch.from_numpy(features.gather(part)).to(device)

    def gather(self, node: NDArray[np.int64]) -> Tensor:
        """See `FeatureRows`; on the device."""
        if self._changing is None:
            return self._resident(node)
        rows = self._resident(np.minimum(node, len(self._rows) - 1))
        later = np.flatnonzero(self._changing.changed(node))
        if len(later):
            rows[self._moved(later)] = self._moved(self._changing.gather(node[later]))
        return rows

    def _resident(self, node: NDArray[np.int64]) -> Tensor:
        return self._rows.index_select(0, self._moved(node)).to(torch.float32)

    def _moved(self, array: NDArray[np.generic]) -> Tensor:
        return on_device(for_device(array, self._device), self._device)


_ROWS_AT_ONCE = 1 << 16


def feature_rows(features: ReadableFeatures, device: torch.device, max_resident_bytes: int) -> FeatureRows:
    """Features kept on a GPU if they take no more than `max_resident_bytes` there; else read as needed."""
    size = features.shape[0] * features.shape[1] * features.dtype.itemsize
    if device.type != "cpu" and size <= max_resident_bytes:
        return ResidentFeatures(features, device)
    return HostFeatures(features, device)
