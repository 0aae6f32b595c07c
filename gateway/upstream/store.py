"""The model archives that lie in a model store, and which version of each model is its default."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.errors import UpstreamError

_DEFAULTS_NAME = "default-versions.json"


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
    """All archives of a store, by model; its default version first, then from the oldest to the newest.

    TorchServe's default is the version that it registers first, so this is the order to register in.

    Raises:
        UpstreamError: a file is no model archive, which would keep TorchServe from starting.
    """
    defaults = _read_defaults(store)

    def order(archive: StoredArchive) -> tuple[str, bool, list[tuple[int, str]]]:
        is_default = defaults.get(archive.model) == archive.version
        return archive.model, not is_default, _age(archive.version)

    return sorted((_read(path) for path in store.glob("*.mar")), key=order)


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


def _read(path: Path) -> StoredArchive:
    try:
        with zipfile.ZipFile(path) as archive:
            model = msgspec.json.decode(archive.read("MAR-INF/MANIFEST.json"), type=_Manifest).model
    except (OSError, KeyError, zipfile.BadZipFile, msgspec.DecodeError) as error:
        raise UpstreamError(f"{path}: not a model archive: {error}") from None
    return StoredArchive(path.name, model.model_name, model.model_version)


def _age(version: str) -> list[tuple[int, str]]:
    """Parts of a version that are numbers sort as numbers, before those that are not."""
    return [(int(part), "") if part.isdigit() else (1 << 62, part) for part in version.split(".")]
