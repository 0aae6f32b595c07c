"""Runs ONNX files by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from handler.errors import ModelError, NoGradients, in_one_line
from handler.model.memory import translated

if TYPE_CHECKING:
    import onnxruntime


class OnnxRuntime:
    """An ONNX file on the CPU, or on the GPU where ONNX Runtime was built for it."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._names = [given.name for given in session.get_inputs()]

    @classmethod
    def load(cls, path: Path, device: torch.device) -> OnnxRuntime:
        """Load a `.onnx` file; anything else is a `ModelError`."""
        try:
            import onnxruntime
        except ImportError:
            raise ModelError(f"{path}: needs ONNX Runtime: pip install 'hopserve[onnx]'") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors: it warns of shapes that it cannot know yet
        try:
            session = onnxruntime.InferenceSession(path, options, providers=_providers(onnxruntime, device))
        except Exception as error:  # noqa: BLE001 - it has a class for each status, and no common one
            raise ModelError(f"{path}: not an ONNX model: {in_one_line(error)}") from None
        return cls(session)

    @property
    def num_arguments(self) -> int | None:
        return len(self._names)

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        given = {name: tensor.cpu().numpy() for name, tensor in zip(self._names, tensors, strict=True)}
        with translated():
            return tuple(torch.from_numpy(output) for output in self._session.run(None, given))

    def with_gradients(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        raise NoGradients


def _providers(onnxruntime: Any, device: torch.device) -> list[Any]:
    if device.type == "cuda":
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise ModelError("this ONNX Runtime runs on the CPU only: set `device: cpu`, or install"
                             " onnxruntime-gpu")  # fmt: skip
        return [("CUDAExecutionProvider", {"device_id": device.index or 0})]
    return ["CPUExecutionProvider"]
