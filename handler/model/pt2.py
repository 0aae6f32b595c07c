"""Runs packages that AOTInductor has compiled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from handler.errors import ModelError, NoGradients, in_one_line
from handler.model.memory import translated
from handler.model.runtime import as_outputs


class Pt2Runtime:
    """An AOTInductor package, on the kind of device that it was compiled for."""

    def __init__(self, package: Any) -> None:
        self._package = package

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Pt2Runtime:
        """Load a `.pt2` file; anything else is a `ModelError`."""
        try:
            index = device.index if device.type == "cuda" and device.index is not None else -1
            return cls(torch._inductor.aoti_load_package(str(path), device_index=index))
        except Exception as error:  # noqa: BLE001 - a file that is no zip, no package, of other hardware...
            raise ModelError(
                f"{path}: not an AOTInductor package for this machine: {in_one_line(error)}"
            ) from None

    @property
    def num_arguments(self) -> int | None:
        (given, _) = self._package.loader.get_call_spec()
        return int(pytree.treespec_loads(given).num_leaves)

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with translated(), torch.inference_mode():
            return as_outputs(self._package(*tensors))

    def with_gradients(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        raise NoGradients
