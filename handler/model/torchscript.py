"""Runs TorchScript files, scripted or traced."""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Sized
from pathlib import Path
from typing import Any

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
                frozen = torch.jit.freeze(module) if hasattr(module, "training") else module
                move_constants(frozen.graph, device)
                return cls(frozen)
            except RuntimeError as error:
                raise ModelError(f"{path}: not a TorchScript model: {in_one_line(error)}") from None

    @property
    def num_arguments(self) -> int | None:
        arguments: Sized = self._module.forward.schema.arguments  # type: ignore[attr-defined]
        return len(arguments) - 1  # less `self`

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with translated(), torch.inference_mode():
            return as_outputs(self._module(*tensors))

    def with_gradients(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        # What is compiled for answers stays as it is, and each shape would be compiled anew for gradients.
        with translated(), torch.enable_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return as_outputs(self._module(*tensors))


def move_constants(graph: Any, device: torch.device) -> None:
    """Let tensors that a graph makes be made on a device: a trace keeps to the one that it was made on."""
    for node in graph.findAllNodes("prim::Constant"):
        if str(node.output().type()) == "Device" and node.output().toIValue() != device:
            with graph.insert_point_guard(node):
                here = graph.insertConstant(device)
            node.output().replaceAllUsesWith(here)
