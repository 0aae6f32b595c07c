"""Writes each layer of a layered model as a model of its own, so that all nodes can be computed by layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archive.export.folder import LAYERS, signed
from archive.export.formats import Writer
from archive.export.layered import LayeredModel
from archive.export.parity import ParityReport
from archive.export.steps import Step, steps
from handler.errors import ModelError, in_one_line
from handler.model.exported import ExportedModel, Model, ModelInput
from handler.model.output import ModelOutput
from handler.model.signature import Signature

_CPU = torch.device("cpu")


class LayerChain:
    """The layers of a model, one after the other, in place of the model: called with what it is called with.

    Args:
        signature: of the whole model.
        layers: for the layer applied first to the one applied last.
    """

    device = _CPU

    def __init__(self, signature: Signature, layers: Sequence[Model]) -> None:
        self.signature = signature
        self._layers = layers

    def run(self, given: ModelInput) -> ModelOutput:
        """One forward; see `handler.model.exported.Model`."""
        state, *others = given.tensors
        per_layer = len(others) // len(self._layers)
        for number, layer in enumerate(self._layers):
            of_layer = others[number * per_layer : (number + 1) * per_layer]
            output = layer.run(ModelInput((state, *of_layer), of_layer[1].size(0) - 1))
            state = torch.from_numpy(output.embedding)
        return output

    def score(self, source: NDArray[np.float32], target: NDArray[np.float32]) -> NDArray[np.float32]:
        """Link scores; see `handler.model.exported.Model`."""
        return self._layers[-1].score(source, target)


def write_layers(
    made: LayeredModel,
    signature: Signature,
    example: Sequence[Tensor],
    ways: Mapping[str, Writer],
    check: Callable[[Model], ParityReport],
    folder: Path,
) -> ParityReport:
    """Write `layers/1` to `layers/L`, each a layered model of one layer as TorchScript, for any device.

    Each takes as `x` the state that the one before gives as its `embedding`; the last one gives what the
    model gives. A link score by a head becomes `dot`, since it is the model's folder that has the head.

    Args:
        made: the model, on the CPU.
        signature: of the whole model.
        example: what the whole model may be called with.
        ways: to write TorchScript, the preferred one first.
        check: compares the layers, one after the other, with the eager model.
        folder: of the whole model.

    Raises:
        ModelError: the model cannot be split, or what is written differs; what is written is wrong then.
    """
    split = steps(made, example)
    examples = _examples(split, example)
    signatures = _signatures(signature, split)
    folders = [folder / LAYERS / str(number) for number in range(1, len(split) + 1)]
    reasons = []
    for method, write in ways.items():
        try:
            for step, given, draft, part in zip(split, examples, signatures, folders, strict=True):
                part.mkdir(parents=True, exist_ok=True)
                _write(write, step, given, part / draft.model_file)
                signed(draft, part)
            return check(LayerChain(signature, [ExportedModel.load(part, _CPU) for part in folders]))
        except ModelError as error:
            reasons.append(f"{method}: {error}")
    raise ModelError("; ".join(reasons))


def _write(write: Writer, step: Step, given: Sequence[Tensor], path: Path) -> None:
    try:
        write(step.module, given, path)
    except Exception as error:
        raise ModelError(f"cannot be written as torchscript: {in_one_line(error)}") from error


def _examples(split: Sequence[Step], example: Sequence[Tensor]) -> list[list[Tensor]]:
    """What each step is called with where the whole model is called with the example."""
    state, *others = example
    per_layer = len(others) // len(split)
    examples = []
    for number, step in enumerate(split):
        examples.append([state, *others[number * per_layer : (number + 1) * per_layer]])
        if number + 1 < len(split):
            try:
                with torch.no_grad():
                    state = step.module(*[tensor.clone() for tensor in examples[-1]])
            except Exception as error:
                raise ModelError(f"layer {number + 1} fails alone: {in_one_line(error)}") from error
    return examples


def _signatures(signature: Signature, split: Sequence[Step]) -> list[Signature]:
    alone = [
        msgspec.structs.replace(
            signature, file_format="torchscript", device="any", feature_dim=step.feature_dim,
            layer_fanouts=(fanout,), checksums={},
        )
        for step, fanout in zip(split, signature.layer_fanouts, strict=True)
    ]  # fmt: skip
    between = [
        msgspec.structs.replace(
            each, task="embedding", outputs=("embedding",), embedding_dim=following.feature_dim, labels=(),
            multi_label=False, thresholds={}, targets=(), link_score=None,
        )
        for each, following in zip(alone[:-1], split[1:], strict=True)
    ]  # fmt: skip
    by_head = signature.link_score == "head"
    last = msgspec.structs.replace(alone[-1], link_score="dot") if by_head else alone[-1]
    return [*between, last]
