"""Writes a module to a file of each format."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from handler.errors import ModelError
from handler.model.signature import FileFormat

Writer = Callable[[nn.Module, Sequence[Tensor], Path], None]


def writers(file_format: FileFormat) -> dict[str, Writer]:
    """The ways to write a format, by what they are called, the preferred one first."""
    if file_format == "torchscript":
        return {"scripted": write_scripted, "traced": write_traced}
    return {"compiled": write_pt2} if file_format == "pt2" else {"exported": write_onnx}


def write_scripted(module: nn.Module, example: Sequence[Tensor], path: Path) -> None:
    """Compile the code of a module to TorchScript; of PyG's layers some cannot be."""
    with _quiet():
        torch.jit.save(torch.jit.script(module), str(path))


def write_traced(module: nn.Module, example: Sequence[Tensor], path: Path) -> None:
    """Record what a module does on an example, as TorchScript; branches are those of the example."""
    with _quiet(), torch.no_grad():
        traced = torch.jit.trace(module, tuple(example), check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, str(path))


def write_pt2(module: nn.Module, example: Sequence[Tensor], path: Path) -> None:
    """Compile a module by AOTInductor, for this machine's CPU or GPU."""
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        raise ModelError(f"{path.name}: AOTInductor needs a C++ compiler, and finds none")
    with _quiet():
        program = _exported(module, example)
        # Threads as the process has them when it runs, not as this one has them now.
        configs = {"cpp.dynamic_threads": True}
        torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=configs)


def write_onnx(module: nn.Module, example: Sequence[Tensor], path: Path) -> None:
    """Translate a module to ONNX with open sizes."""
    try:
        import onnxscript  # noqa: F401 - looked for, since PyTorch's own message names no extra
    except ImportError:
        raise ModelError(f"{path.name}: needs onnxscript: pip install 'hopserve[onnx]'") from None
    with _quiet():
        torch.onnx.export(
            _exported(module, example), tuple(example), str(path), external_data=False, verbose=False
        )


def _exported(module: nn.Module, example: Sequence[Tensor]) -> torch.export.ExportedProgram:
    """A module with open numbers of nodes and edges, which 0 and 1 are among."""
    # An edge_index is the one matrix of integers: its edges are in its columns.
    open_sizes = [
        {1 if tensor.dim() == 2 and tensor.dtype == torch.int64 else 0: torch.export.Dim.DYNAMIC}
        for tensor in example
    ]
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        return torch.export.export(module, tuple(example), dynamic_shapes=tuple(open_sizes))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings and words of exporters: a failure says what matters, as an exception."""
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
