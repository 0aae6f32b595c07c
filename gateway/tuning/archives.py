"""Reads how an archive is to be run, and writes copies of it that are run otherwise."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.errors import UpstreamError
from gateway.tuning.candidates import Candidate
from gateway.upstream.store import StoredArchive, read_archive
from handler.settings import GRAPH_VARIABLE, Settings, parse_settings

_CONFIG = "model-config.yaml"
_TORCHSERVE_DELAY_MS = 100  # its own default, as are the ones of all the others


@dataclass(frozen=True)
class Original:
    """The archive that is measured, with the settings that it has.

    Args:
        config: all of its `model-config.yaml`.
        settings: of the handler, on the graph that workers on this machine open.
    """

    path: Path
    stored: StoredArchive
    config: Mapping[str, Any]
    settings: Settings
    present: Candidate


def read_original(path: Path) -> Original:
    """Read an archive of a model.

    Raises:
        UpstreamError: it is none.
        SettingsError: its settings cannot be used.
    """
    stored = read_archive(path)
    if not stored.is_model:
        raise UpstreamError(f"{path}: has no model that could be measured")
    try:
        with zipfile.ZipFile(path) as archive:
            config = yaml.safe_load(archive.read(_CONFIG))
        section = dict(config["handler"])
        present = _present(config, section)
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile, yaml.YAMLError) as error:
        raise UpstreamError(f"{path}: its {_CONFIG} cannot be used: {error!r:.200}") from None
    settings = parse_settings(section)
    if graph := os.environ.get(GRAPH_VARIABLE):
        settings = msgspec.structs.replace(settings, graph=graph)
    return Original(path, stored, config, settings, present)


def write_candidate(original: Original, candidate: Candidate, target: Path, answers: Path) -> None:
    """Write a copy that is run otherwise: but for these settings all is as it was.

    Args:
        answers: folder for its stored answers, so that those of the original are left alone.

    Raises:
        UpstreamError: it cannot be read or written.
    """
    changed = {
        **original.config,
        "batchSize": candidate.batch_size,
        "maxBatchDelay": candidate.max_batch_delay_ms,
        "minWorkers": candidate.num_workers,
        "maxWorkers": candidate.max_workers,
        "handler": {
            **original.config["handler"],
            "num_threads": candidate.num_threads,
            "embeddings": str(answers),
        },
    }
    try:
        with zipfile.ZipFile(original.path) as source, zipfile.ZipFile(target, "w") as written:
            for entry in source.infolist():
                content = source.read(entry)
                if entry.filename == _CONFIG:
                    content = yaml.safe_dump(changed, sort_keys=False).encode()
                written.writestr(entry, content)
    except (OSError, zipfile.BadZipFile) as error:
        raise UpstreamError(f"{original.path}: cannot be copied to {target}: {error}") from None


def _present(config: Mapping[str, Any], section: Mapping[str, Any]) -> Candidate:
    num_workers = int(config.get("minWorkers", 1))
    return Candidate(
        batch_size=int(config.get("batchSize", 1)),
        max_batch_delay_ms=int(config.get("maxBatchDelay", _TORCHSERVE_DELAY_MS)),
        num_workers=num_workers,
        max_workers=max(num_workers, int(config.get("maxWorkers", num_workers))),
        num_threads=int(section.get("num_threads", 0)),
    )
