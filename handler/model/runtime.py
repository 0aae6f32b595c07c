"""Loads an exported model and runs it on batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch

from handler.errors import ModelError
from handler.model.signature import MODEL_NAME, Signature, model_checksum, read_signature


@dataclass(frozen=True)
class ModelOutput:
    """What a model says of some seeds.

    Args:
        embedding: float32 [num_seeds, embedding_dim].
        logits: float32 [num_seeds, num_classes], of width 0 without classes.
    """

    embedding: NDArray[np.float32]
    logits: NDArray[np.float32]


class Runtime(Protocol):
    """A loaded model, whatever its file format."""

    signature: Signature

    def run(self, batch: Batch) -> ModelOutput:
        """One forward over the trees of `batch`."""
        ...


class TorchScriptRuntime:
    """A TorchScript model on one device."""

    def __init__(self, module: torch.jit.ScriptModule, signature: Signature, device: torch.device) -> None:
        self._module = module
        self._device = device
        self.signature = signature

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> TorchScriptRuntime:
        """Load `model.pt` as its `signature.json` describes it; `ModelError` if they do not match."""
        signature = read_signature(folder)
        path = folder / MODEL_NAME
        found = model_checksum(folder)
        if found != signature.model_checksum:
            raise ModelError(
                f"{path}: its checksum is {found}, the signature says {signature.model_checksum}"
            )
        try:
            module = torch.jit.load(str(path), map_location=device).eval()  # type: ignore[no-untyped-call]
            # Freezing folds the weights in: a fifth off small batches, and no slow seventh call.
            frozen = torch.jit.freeze(module)
        except RuntimeError as error:
            raise ModelError(f"{path}: not a TorchScript model: {str(error).splitlines()[0]}") from None
        return cls(frozen, signature, device)

    def run(self, batch: Batch) -> ModelOutput:
        with torch.inference_mode():
            if self._device.type != "cpu":  # PyG walks every attribute even when nothing moves
                batch = batch.to(self._device, non_blocking=True)
            edge_inputs = [batch[name] for name in self.signature.edge_inputs]
            embedding, logits = self._module(
                batch.x, batch.edge_index, batch.hop, batch.edge_rank, *edge_inputs
            )
            return ModelOutput(embedding.cpu().numpy(), logits.cpu().numpy())
