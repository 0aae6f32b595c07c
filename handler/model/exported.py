"""An exported model as it is served: its signature, its files, and what they say of some seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from handler.errors import ModelError
from handler.model.device import on_device
from handler.model.output import ModelOutput
from handler.model.runtime import Runtime, load_runtime
from handler.model.signature import Signature, check_files, read_signature


@dataclass(frozen=True)
class ModelInput:
    """What one forward is called with.

    Args:
        tensors: in the order of `Signature.argument_names`, on the CPU or already on the device.
        num_seeds: how many are asked for.
        seed_rows: int64 [num_seeds], the rows of the output that are theirs; none where these are all rows.
    """

    tensors: tuple[Tensor, ...]
    num_seeds: int
    seed_rows: Tensor | None = None


class Model(Protocol):
    """What a service asks."""

    signature: Signature
    device: torch.device

    def run(self, given: ModelInput) -> ModelOutput:
        """One forward; `OutOfMemory` if it is too large for the device."""
        ...

    def score(self, source: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32 [num_pairs], the link score of each pair of embeddings, float32 [num_pairs, dim] each."""
        ...


@runtime_checkable
class Differentiable(Protocol):
    """What explanations by gradients ask."""

    def differentiable(self, given: ModelInput) -> tuple[Tensor, Tensor]:
        """One forward: embedding and prediction as of `run`, to be differentiated by the first tensor given.

        Raises:
            NoGradients: files of its format cannot be.
            OutOfMemory: see `run`.
        """
        ...

    def differentiable_score(self, source: Tensor, target: Tensor) -> Tensor:
        """float32 [num_pairs], as `Model.score`, of tensors."""
        ...


class ExportedModel:
    """A model from a folder that `hopserve export` wrote, or from an archive.

    Args:
        head: of link scores, where the signature names one.
    """

    def __init__(
        self, signature: Signature, runtime: Runtime, device: torch.device, head: Runtime | None = None
    ) -> None:
        self.signature = signature
        self.device = device
        self._runtime = runtime
        self._head = head

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> ExportedModel:
        """Load what `signature.json` describes; `ModelError` if the files do not match it."""
        signature = read_signature(folder)
        check_files(folder, signature)
        if signature.device not in {"any", device.type}:
            raise ModelError(
                f"{folder / signature.model_file}: was compiled for `{signature.device}`, but is to run on"
                f" `{device.type}`"
            )
        path = folder / signature.model_file
        runtime = load_runtime(path, signature.file_format, device)
        names = signature.argument_names()
        if runtime.num_arguments is not None and runtime.num_arguments != len(names):
            layers = len(signature.layer_fanouts)
            raise ModelError(
                f"{path}: takes {runtime.num_arguments} tensors, but for the {layers} layers of its signature"
                f" it would take {len(names)}: {', '.join(names)}"
            )
        head = None
        if signature.link_score == "head":
            head = load_runtime(folder / signature.head_file, signature.file_format, device)
        return cls(signature, runtime, device, head)

    def run(self, given: ModelInput) -> ModelOutput:
        """One forward; see `Model`.

        Raises:
            ModelError: the outputs are not what the signature promises.
        """
        outputs = self._runtime([on_device(tensor, self.device) for tensor in given.tensors])
        return ModelOutput(*(_as_array(tensor) for tensor in self._checked(outputs, given)))

    def differentiable(self, given: ModelInput) -> tuple[Tensor, Tensor]:
        """One forward whose outputs can be differentiated; see `Differentiable`."""
        outputs = self._runtime.with_gradients([on_device(tensor, self.device) for tensor in given.tensors])
        embedding, prediction = self._checked(outputs, given)
        return embedding, prediction

    def score(self, source: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
        """Link scores; see `Model`."""
        if self.signature.link_score == "head":
            assert self._head is not None  # noqa: S101 - as `load` has seen to
            pair = [on_device(torch.from_numpy(end), self.device) for end in (source, target)]
            (scores,) = self._head(pair)
            return _as_array(scores).reshape(len(source))
        if self.signature.link_score == "cosine":
            source, target = _normalised(source), _normalised(target)
        scores_: NDArray[np.float32] = np.einsum("pd,pd->p", source, target)
        return scores_

    def differentiable_score(self, source: Tensor, target: Tensor) -> Tensor:
        """Link scores that can be differentiated; see `Differentiable`."""
        if self.signature.link_score == "head":
            assert self._head is not None  # noqa: S101 - as `load` has seen to
            (scores,) = self._head.with_gradients([source, target])
            return scores.reshape(len(source))
        if self.signature.link_score == "cosine":
            source, target = functional.normalize(source), functional.normalize(target)
        return (source * target).sum(dim=1)

    def _checked(self, outputs: Sequence[Tensor], given: ModelInput) -> list[Tensor]:
        """Embedding and prediction of the seeds, of the shapes that the signature promises."""
        signature = self.signature
        if len(outputs) != len(signature.outputs):
            raise ModelError(
                f"the model gives {len(outputs)} tensors, its signature promises {len(signature.outputs)}:"
                f" {', '.join(signature.outputs)}"
            )
        by_name = dict(zip(signature.outputs, outputs, strict=True))
        found = []
        for name, width in (("embedding", signature.embedding_dim), ("prediction", signature.prediction_dim)):
            tensor = by_name.get(name)  # type: ignore[call-overload]
            if tensor is None:
                found.append(torch.empty((given.num_seeds, 0)))
                continue
            if tensor.dim() == 1:  # one number for each row
                tensor = tensor.unsqueeze(1)
            if given.seed_rows is not None and len(tensor):
                tensor = tensor.index_select(0, given.seed_rows.to(tensor.device))
            if tensor.shape != (given.num_seeds, width):
                raise ModelError(
                    f"the model gives {name} of shape {list(tensor.shape)}, its signature promises"
                    f" {[given.num_seeds, width]}"
                )
            found.append(tensor)
        return found


def _as_array(tensor: Tensor) -> NDArray[np.float32]:
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32:
        tensor = tensor.to("cpu", torch.float32)
    array: NDArray[np.float32] = tensor.numpy()
    return array


def _normalised(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float32] = rows / np.maximum(lengths, 1e-12)
    return unit
