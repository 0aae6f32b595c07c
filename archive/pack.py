"""Packs an exported model with the handler into `NAME-VERSION.mar`, for TorchServe's model store."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import handler
from handler.errors import ModelError, SettingsError
from handler.graph.snapshot import Snapshot
from handler.inputs import ModelInputs
from handler.metrics import torchserve_metrics_file
from handler.model.signature import SIGNATURE_NAME, check_files, read_signature
from handler.settings import parse_settings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc")


@dataclass(frozen=True)
class PackPlan:
    """What goes into an archive, and how TorchServe is to run it.

    Args:
        model_folder: with the model and its `signature.json`, as `hopserve export` writes it.
        graph_folder: snapshot that workers open; it stays where it is.
        handler_package: the `handler` package that the archive carries.
        batch_size, max_batch_delay_ms: TorchServe sends a batch when it has so many requests, or when
            the first has waited so long.
        num_workers: processes at the start.
        max_workers: up to which the model may be scaled; cores are divided by it.
        settings: of the handler, beside its graph; see `handler.settings.Settings`.
    """

    name: str
    version: str
    model_folder: Path
    graph_folder: Path
    handler_package: Path = Path(handler.__file__).parent
    batch_size: int = 64
    max_batch_delay_ms: int = 1
    num_workers: int = 1
    max_workers: int = 2
    response_timeout_s: int = 60
    startup_timeout_s: int = 120
    settings: Mapping[str, Any] = field(default_factory=dict)


def pack(plan: PackPlan, store: Path, report: Callable[[str], None] = lambda step: None) -> Path:
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


def model_config(plan: PackPlan) -> dict[str, object]:
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


def handler_section(plan: PackPlan) -> dict[str, Any]:
    """The handler's section of `model-config.yaml`."""
    return {"graph": str(plan.graph_folder.resolve()), **plan.settings}


def _check(plan: PackPlan) -> None:
    if not _NAME.fullmatch(plan.name):
        raise SettingsError(f"model name {plan.name!r}: use letters, digits, `_` and `-`")
    if not _VERSION.fullmatch(plan.version):
        raise SettingsError(f"model version {plan.version!r}: use numbers with dots, such as 1.0")
    signature = read_signature(plan.model_folder)
    check_files(plan.model_folder, signature)
    # What a worker would refuse when it starts is refused now.
    settings = parse_settings(handler_section(plan))
    ModelInputs(Snapshot.open(plan.graph_folder), signature, settings)
    if not (plan.handler_package / "entry.py").is_file():
        raise ModelError(f"{plan.handler_package}: is no handler package, it has no entry.py")


def _stage(plan: PackPlan, work: Path) -> None:
    staged = work / "staged"
    shutil.copytree(plan.handler_package, staged / "handler", ignore=_SKIPPED)
    shutil.copy(plan.handler_package / "entry.py", staged / "entry.py")
    for name in (*read_signature(plan.model_folder).files, SIGNATURE_NAME):
        shutil.copy(plan.model_folder / name, staged / name)
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


def _run_archiver(plan: PackPlan, work: Path) -> None:
    model_file = read_signature(plan.model_folder).model_file
    # Relative paths: the archiver takes commas and wildcards in them for its own.
    command = [sys.executable, "-m", "model_archiver.model_packaging"]
    command += ["--model-name", plan.name, "--version", plan.version, "--export-path", "out"]
    command += ["--serialized-file", f"staged/{model_file}", "--handler", "staged/entry.py"]
    command += ["--extra-files", "staged", "--config-file", "model-config.yaml"]
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
