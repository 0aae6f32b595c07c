"""The same model in each file format: how long its forward, its export and its loading take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import torch
from torch import Tensor

from archive.export.export import export_model
from archive.export.formats import write_scripted
from archive.export.layered import layered
from handler.inputs import ModelInputs
from handler.model.exported import ExportedModel, ModelInput
from handler.model.signature import FileFormat, Signature, read_signature
from handler.model.torchscript import TorchScriptRuntime
from handler.settings import Settings
from tests.bench.floor import Stopwatch
from tests.bench.pipeline import (
    DIMS,
    LAYER_FANOUTS,
    PLAN,
    SAMPLED,
    TURN,
    Sage,
    make_graph,
    settled,
    show_table,
)

_SIZES = (1, 32)
_NUM_EDGES = 1_000_000
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Contestant:
    """One form of the model.

    Args:
        run: a forward, which gives an array or a tensor.
        export_s, load_s: seconds; none of what is no file.
    """

    run: Callable[[ModelInput], object]
    export_s: float | None = None
    file_mb: float | None = None
    load_s: float | None = None


@click.command("formats")
@click.option("--rounds", type=click.IntRange(1), default=300, show_default=True, help="Forwards of each.")
@click.option("--pt2/--no-pt2", default=True, show_default=True, help="Compile, too: up to a minute.")
def formats_command(rounds: int, pt2: bool) -> None:
    """Time GraphSAGE of 128 -> 256 -> 64 on two hops of ten, on one thread, in each format.

    The forms take turns of ten forwards, on inputs that were written just before, as when they are served;
    the first two of each turn do not count. Fused is a form of layers that never writes messages; ONNX has
    none. An export includes comparing the file with the model.
    """
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        contestants = _contestants(Path(folder), pt2=pt2)
        signature = read_signature(Path(folder, "torchscript"))
        inputs = _inputs(Path(folder, "graph"), signature)
        taken = {size: _race(contestants, inputs[size], rounds) for size in _SIZES}
    click.echo("Microseconds per seed of the forward alone\n")
    show_table(
        ("form", *(f"batch {size}" for size in _SIZES), "export s", "file MB", "load s"),
        [
            (
                name,
                *(f"{taken[size][name]:.1f}" for size in _SIZES),
                *map(_shown, (form.export_s, form.file_mb, form.load_s)),
            )
            for name, form in contestants.items()
        ],
    )


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _contestants(folder: Path, *, pt2: bool) -> dict[str, _Contestant]:
    formats: list[FileFormat] = ["torchscript", *(["pt2"] if pt2 else []), "onnx"]  # type: ignore[list-item]
    return {
        "eager, layered": _eager(fuse=False),
        "eager, layered, fused": _eager(fuse=True),
        "torchscript": _unfused(folder / "unfused.pt"),
        **{
            f"{name}{'' if name == 'onnx' else ', fused'}": _exported(name, folder / name) for name in formats
        },
    }


def _layered(*, fuse: bool) -> torch.fx.GraphModule:
    model = Sage().eval().requires_grad_(requires_grad=False)
    return layered(model, LAYER_FANOUTS, DIMS[0], fuse=fuse).module


def _eager(*, fuse: bool) -> _Contestant:
    module = _layered(fuse=fuse)

    def run(given: ModelInput) -> Tensor:
        with torch.inference_mode():
            out: Tensor = module(*given.tensors)
            return out

    return _Contestant(run)


def _unfused(path: Path) -> _Contestant:
    """A TorchScript file as PyG's own layers would be, without the comparison of an export."""
    write_scripted(_layered(fuse=False), (), path)
    runtime = TorchScriptRuntime.load(path, _CPU)
    return _Contestant(lambda given: runtime(given.tensors), file_mb=path.stat().st_size / 1e6)


def _exported(file_format: FileFormat, folder: Path) -> _Contestant:
    started = time.monotonic()
    report = export_model(Sage(), replace(PLAN, file_format=file_format), folder)
    export_s = time.monotonic() - started
    started = time.monotonic()
    model = ExportedModel.load(folder, _CPU)
    load_s = time.monotonic() - started
    file_mb = (folder / report.signature.model_file).stat().st_size / 1e6
    return _Contestant(model.run, export_s, file_mb, load_s)


def _inputs(folder: Path, signature: Signature) -> dict[int, list[ModelInput]]:
    snapshot = make_graph(folder, _NUM_EDGES)
    inputs = ModelInputs(snapshot, signature, Settings(graph=str(folder)))
    generator = np.random.default_rng(0)

    def given(size: int) -> ModelInput:
        seeds = generator.integers(0, snapshot.num_nodes, size)
        return inputs.gather(inputs.arrange(inputs.sample(seeds, SAMPLED)))

    return {size: [given(size) for _ in range(TURN)] for size in _SIZES}


def _race(contestants: dict[str, _Contestant], inputs: list[ModelInput], rounds: int) -> dict[str, float]:
    """The median microseconds per seed of each."""
    stopwatch = Stopwatch(inputs[0].num_seeds)
    for _ in range(2 + -(-rounds // TURN)):
        for name, contestant in contestants.items():
            for given in inputs:
                written = replace(given, tensors=tuple(tensor.clone() for tensor in given.tensors))
                with stopwatch.timed(name):
                    contestant.run(written)
    return {name: float(np.median(settled(taken))) for name, taken in stopwatch.taken_us.items()}
