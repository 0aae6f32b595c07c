"""The model archives that lie in a model store, and which version of each model is its default."""

from __future__ import annotations

import filecmp
import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import msgspec

from gateway.errors import UpstreamError
from handler.model.files import SIGNATURE_NAME, TRAINING_NAME

_DEFAULTS_NAME = "default-versions.json"


@dataclass(frozen=True)
class StoredArchive:
    """A `.mar` file, and what it says it is.

    Args:
        is_model: whether it answers questions about nodes; else it takes changes, or is no archive of ours.
        metrics: of the model's training, by name, as far as they are known.
    """

    file_name: str
    model: str
    version: str
    is_model: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)


class _Model(msgspec.Struct, rename="camel"):
    model_name: str
    model_version: str


class _Manifest(msgspec.Struct):
    model: _Model


def list_archives(store: Path) -> list[StoredArchive]:
    """All archives of a store, by model; its default version first, then from the oldest to the newest.

    TorchServe's default is the version that it registers first, so this is the order to register in.

    Raises:
        UpstreamError: a file is no model archive, which would keep TorchServe from starting.
    """
    defaults = _read_defaults(store)

    def order(archive: StoredArchive) -> tuple[str, bool, list[tuple[int, str]]]:
        is_default = defaults.get(archive.model) == archive.version
        return archive.model, not is_default, _age(archive.version)

    return sorted((read_archive(path) for path in store.glob("*.mar")), key=order)


def read_archive(path: Path) -> StoredArchive:
    """What an archive says it is.

    Raises:
        UpstreamError: it is none.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            model = msgspec.json.decode(archive.read("MAR-INF/MANIFEST.json"), type=_Manifest).model
            metrics = (
                msgspec.json.decode(archive.read(TRAINING_NAME), type=dict[str, float])
                if TRAINING_NAME in names
                else {}
            )
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise UpstreamError(f"{path}: not a model archive: {error}") from None
    return StoredArchive(path.name, model.model_name, model.model_version, SIGNATURE_NAME in names, metrics)


def put_archive(store: Path, file_name: str, content: BinaryIO) -> None:
    """Write an archive into a store, in one step.

    Raises:
        UpstreamError: it is none, or another one has its name.
    """
    if "/" in file_name or not file_name.endswith(".mar"):
        raise UpstreamError(f"{file_name} is no name of an archive, such as graphsage-2.0.mar")
    place = store / file_name
    written = store / f".{file_name}.{os.getpid()}"
    try:
        with written.open("wb") as output:
            shutil.copyfileobj(content, output)
        read_archive(written)
        if place.exists() and not filecmp.cmp(place, written, shallow=False):
            raise UpstreamError(f"{place} is another archive: give the new one a version of its own")
        written.replace(place)
    except OSError as error:
        raise UpstreamError(f"{place}: cannot be written: {error.strerror}") from None
    finally:
        written.unlink(missing_ok=True)


def remember_default(store: Path, model: str, version: str) -> None:
    """Note that a version is its model's default, for the next start; TorchServe itself forgets it."""
    defaults = _read_defaults(store) | {model: version}
    written = store / f".{_DEFAULTS_NAME}"
    try:
        written.write_bytes(msgspec.json.format(msgspec.json.encode(defaults)) + b"\n")
        written.replace(store / _DEFAULTS_NAME)
    except OSError as error:
        raise UpstreamError(f"{store / _DEFAULTS_NAME}: cannot be written: {error.strerror}") from None


def _read_defaults(store: Path) -> dict[str, str]:
    path = store / _DEFAULTS_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise UpstreamError(f"{path}: cannot be read: {error}") from None


def _age(version: str) -> list[tuple[int, str]]:
    """Parts of a version that are numbers sort as numbers, before those that are not."""
    return [(int(part), "") if part.isdigit() else (1 << 62, part) for part in version.split(".")]
