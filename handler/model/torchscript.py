"""Runs TorchScript files, scripted or traced."""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Sized
from pathlib import Path

import torch
from torch import Tensor

from handler.errors import ModelError, in_one_line
from handler.model.memory import translated
from handler.model.runtime import as_outputs


class TorchScriptRuntime:
    """A TorchScript file on any device."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._module = module

    @classmethod
    def load(cls, path: Path, device: torch.device) -> TorchScriptRuntime:
        """Load a `.pt` file; anything else is a `ModelError`."""
        with warnings.catch_warnings():
            # torch.jit is deprecated, but still the format whose files need neither PyG nor a compiler.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                module = torch.jit.load(str(path), map_location=device).eval()  # type: ignore[no-untyped-call]
                # Freezing folds the weights in: a fifth off small batches, and no slow seventh call.
                return cls(torch.jit.freeze(module) if hasattr(module, "training") else module)
            except RuntimeError as error:
                raise ModelError(f"{path}: not a TorchScript model: {in_one_line(error)}") from None

    @property
    def num_arguments(self) -> int | None:
        arguments: Sized = self._module.forward.schema.arguments  # type: ignore[attr-defined]
        return len(arguments) - 1  # less `self`

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with translated(), torch.inference_mode():
            return as_outputs(self._module(*tensors))
