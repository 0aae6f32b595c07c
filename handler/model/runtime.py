"""Runs a file of one format on one device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from handler.model.signature import FileFormat


class Runtime(Protocol):
    """A loaded file: called with tensors on its device, it gives tensors."""

    @property
    def num_arguments(self) -> int | None:
        """How many tensors it is called with; none where the file does not say."""
        ...

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One forward.

        Raises:
            OutOfMemory: the device has not enough memory for it.
            RuntimeError: whatever else the file fails at.
        """
        ...

    def with_gradients(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """One forward that can be differentiated by the tensors that ask for it.

        Raises:
            NoGradients: no file of this format can.
            RuntimeError: see above.
        """
        ...


def load_runtime(path: Path, file_format: FileFormat, device: torch.device) -> Runtime:
    """Load a file; one that cannot be loaded is a `ModelError`."""
    # Imported when needed: each brings libraries of its own.
    if file_format == "torchscript":
        from handler.model.torchscript import TorchScriptRuntime

        return TorchScriptRuntime.load(path, device)
    if file_format == "pt2":
        from handler.model.pt2 import Pt2Runtime

        return Pt2Runtime.load(path, device)
    from handler.model.onnx import OnnxRuntime

    return OnnxRuntime.load(path, device)


def as_outputs(output: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a forward gave, one tensor or several, as a tuple."""
    return (output,) if isinstance(output, Tensor) else tuple(output)
