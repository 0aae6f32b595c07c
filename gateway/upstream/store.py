"""The model archives that lie in a model store."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.errors import UpstreamError


@dataclass(frozen=True)
class StoredArchive:
    """A `.mar` file, and what it says it is."""

    file_name: str
    model: str
    version: str


class _Model(msgspec.Struct, rename="camel"):
    model_name: str
    model_version: str


class _Manifest(msgspec.Struct):
    model: _Model


def list_archives(store: Path) -> list[StoredArchive]:
    """All archives of a store, by model and then from the oldest version to the newest.

    Raises:
        UpstreamError: a file is no model archive, which would keep TorchServe from starting.
    """
    return sorted((_read(path) for path in store.glob("*.mar")), key=_age)


def _read(path: Path) -> StoredArchive:
    try:
        with zipfile.ZipFile(path) as archive:
            model = msgspec.json.decode(archive.read("MAR-INF/MANIFEST.json"), type=_Manifest).model
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise UpstreamError(f"{path}: not a model archive: {error}") from None
    return StoredArchive(path.name, model.model_name, model.model_version)


def _age(archive: StoredArchive) -> tuple[str, list[tuple[int, str]]]:
    """Parts of a version that are numbers sort as numbers, before those that are not."""
    parts = archive.version.split(".")
    return archive.model, [(int(part), "") if part.isdigit() else (1 << 62, part) for part in parts]
