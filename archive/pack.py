"""Packs the handler, with or without a model, into `NAME-VERSION.mar` for TorchServe's model store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

import handler
from archive.export.folder import LAYERS
from archive.training import read_training
from handler.errors import ModelError, SettingsError
from handler.graph.home import GraphHome
from handler.graph.snapshot import Snapshot
from handler.inputs import ModelInputs
from handler.metrics import torchserve_metrics_file
from handler.model.files import SIGNATURE_NAME, TRAINING_NAME
from handler.model.signature import Signature, check_files, read_signature
from handler.settings import parse_graph_settings, parse_settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc")


@dataclass(frozen=True)
class ArchivePlan:
    """What goes into any archive, and how TorchServe is to run it.

    Args:
        graph_folder: graph that workers open; it stays where it is.
        handler_package: the `handler` package that the archive carries.
        batch_size, max_batch_delay_ms: TorchServe sends a batch when it has so many requests, or when
            the first has waited so long.
        num_workers: processes at the start.
        max_workers: up to which the model may be scaled; cores are divided by it.
        settings: of the handler, beside its graph; see `handler.settings.Settings`.
    """

    name: str
    version: str
    _: KW_ONLY
    graph_folder: Path
    handler_package: Path = Path(handler.__file__).parent
    batch_size: int = 64
    max_batch_delay_ms: int = 1
    num_workers: int = 1
    max_workers: int = 2
    response_timeout_s: int = 60
    startup_timeout_s: int = 300
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: The file of the handler package that has the class which TorchServe calls.
    entry: ClassVar[str]

    def check(self) -> None:
        """Raise what a worker would raise when it starts."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """What the archive carries beside the handler; the first is the model, if there is one."""
        raise NotImplementedError

    def folders(self) -> list[Path]:
        """What the archive carries as a whole."""
        return []


@dataclass(frozen=True)
class PackPlan(ArchivePlan):
    """A model.

    Args:
        model_folder: with the model and its `signature.json`, and the model's layers if there are any, as
            `hopserve export` writes it.
        settings: see `handler.settings.Settings`.
    """

    model_folder: Path = field(kw_only=True)
    entry: ClassVar[str] = "entry.py"

    def check(self) -> None:
        """See `ArchivePlan`."""
        signature = read_signature(self.model_folder)
        check_files(self.model_folder, signature)
        read_training(self.model_folder)
        for folder in self.folders():
            _check_layers(folder, signature)
        settings = parse_settings(handler_section(self))
        ModelInputs(Snapshot.open(self.graph_folder), signature, settings)

    def files(self) -> list[Path]:
        """See `ArchivePlan`."""
        signature = read_signature(self.model_folder)
        others = [name for name in signature.files if name != signature.model_file]
        files = [self.model_folder / name for name in (signature.model_file, *others, SIGNATURE_NAME)]
        training = self.model_folder / TRAINING_NAME
        return [*files, training] if training.exists() else files

    def folders(self) -> list[Path]:
        """See `ArchivePlan`."""
        layers = self.model_folder / LAYERS
        return [layers] if layers.is_dir() else []


@dataclass(frozen=True)
class GraphPlan(ArchivePlan):
    """What a graph is changed through.

    Args:
        settings: see `handler.settings.GraphSettings`.
    """

    name: str = "graph"
    version: str = "1.0"
    max_workers: int = 1
    response_timeout_s: int = 120
    entry: ClassVar[str] = "graph_entry.py"

    def check(self) -> None:
        """See `ArchivePlan`."""
        parse_graph_settings(handler_section(self))
        GraphHome.read(self.graph_folder)
        Snapshot.open(self.graph_folder)

    def files(self) -> list[Path]:
        """See `ArchivePlan`."""
        return []


def pack(plan: ArchivePlan, store: Path, report: Callable[[str], None] = lambda step: None) -> Path:
    """Write the archive into `store` and return its path; an older one of this name is replaced.

    Raises:
        SettingsError: name or version cannot be used.
        SnapshotError, ModelError: graph and model cannot be opened, or do not fit each other.
    """
    _check(plan)
    archive = store / f"{plan.name}-{plan.version}.mar"
    try:
        store.mkdir(parents=True, exist_ok=True)
        # A folder of one's own: the archiver empties one named after the model in the temporary folder.
        with tempfile.TemporaryDirectory(prefix=".pack-", dir=store) as temporary:
            work = Path(temporary)
            report("staging the handler and the model")
            _stage(plan, work)
            report("checking that TorchServe can import it")
            _check_import(work / "staged")
            report("writing the archive")
            _run_archiver(plan, work)
            (work / "out" / f"{plan.name}.mar").replace(archive)
    except OSError as error:
        raise ModelError(f"{archive}: cannot be written: {error}") from None
    return archive


def model_config(plan: ArchivePlan) -> dict[str, object]:
    """The archive's `model-config.yaml`: TorchServe reads the top level, the handler its section."""
    return {
        "minWorkers": plan.num_workers,
        "maxWorkers": max(plan.num_workers, plan.max_workers),
        "batchSize": plan.batch_size,
        "maxBatchDelay": plan.max_batch_delay_ms,
        "responseTimeout": plan.response_timeout_s,
        "startupTimeout": plan.startup_timeout_s,
        "handler": handler_section(plan),
    }


def handler_section(plan: ArchivePlan) -> dict[str, Any]:
    """The handler's section of `model-config.yaml`."""
    return {"graph": str(plan.graph_folder.resolve()), **plan.settings}


def _check(plan: ArchivePlan) -> None:
    if not _NAME.fullmatch(plan.name):
        raise SettingsError(f"model name {plan.name!r}: use letters, digits, `_` and `-`")
    if not _VERSION.fullmatch(plan.version):
        raise SettingsError(f"model version {plan.version!r}: use numbers with dots, such as 1.0")
    plan.check()
    if not (plan.handler_package / plan.entry).is_file():
        raise ModelError(f"{plan.handler_package}: is no handler package, it has no {plan.entry}")


def _check_layers(folder: Path, whole: Signature) -> None:
    for number, fanout in enumerate(whole.layer_fanouts, start=1):
        signature = read_signature(folder / str(number))
        check_files(folder / str(number), signature)
        if signature.layer_fanouts != (fanout,):
            raise ModelError(
                f"{folder / str(number)}: is a layer of {list(signature.layer_fanouts)} neighbors, but the"
                f" model's has {fanout}: export it again"
            )


def _stage(plan: ArchivePlan, work: Path) -> None:
    staged = work / "staged"
    shutil.copytree(plan.handler_package, staged / "handler", ignore=_SKIPPED)
    shutil.copy(plan.handler_package / plan.entry, staged / "entry.py")
    for file in plan.files():
        shutil.copy(file, staged / file.name)
    for folder in plan.folders():
        shutil.copytree(folder, staged / folder.name)
    _write_yaml(staged / "metrics.yaml", torchserve_metrics_file())
    _write_yaml(work / "model-config.yaml", model_config(plan))
    (work / "tmp").mkdir()
    (work / "out").mkdir()


def _write_yaml(path: Path, content: dict[str, object]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def _check_import(staged: Path) -> None:
    """TorchServe hides an ImportError of the entry file, so it is looked for here."""
    result = subprocess.run(
        [sys.executable, "-c", "import entry; entry.Handler()"],
        cwd=staged,
        env={**os.environ, "PYTHONPATH": str(staged), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        raise ModelError(f"the handler cannot be imported: {lines[-1]}")


def _run_archiver(plan: ArchivePlan, work: Path) -> None:
    # Relative paths: the archiver takes commas and wildcards in them for its own.
    command = [sys.executable, "-m", "model_archiver.model_packaging"]
    command += ["--model-name", plan.name, "--version", plan.version, "--export-path", "out"]
    command += ["--handler", "staged/entry.py", "--extra-files", "staged"]
    command += ["--config-file", "model-config.yaml"]
    if files := plan.files():
        command += ["--serialized-file", f"staged/{files[0].name}"]
    result = subprocess.run(
        command,
        cwd=work,
        env={**os.environ, "TMPDIR": str(work / "tmp")},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise ModelError(f"torch-model-archiver failed: {result.stderr.strip()[-500:]}")
