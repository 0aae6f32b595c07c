"""Reads a packed model back: what it is, and how it is served."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import yaml

from handler.errors import ModelError
from handler.model.signature import Signature, read_signature
from handler.settings import Settings, parse_settings

_CONFIG = "model-config.yaml"


@dataclass(frozen=True)
class PackedModel:
    """What an archive holds, unpacked.

    Args:
        folder: with the model's files.
    """

    name: str
    version: str
    folder: Path
    signature: Signature
    settings: Settings


@contextmanager
def unpacked(store: Path, name: str, version: str | None, graph: Path | None = None) -> Iterator[PackedModel]:
    """Unpack `NAME-VERSION.mar` for as long as it is looked at.

    Args:
        version: none for the only one.
        graph: used instead of the one that it names.

    Raises:
        ModelError: there is no such archive, or it is no model's.
        SettingsError: its settings cannot be used.
    """
    archive, version = _find(store, name, version)
    with TemporaryDirectory(prefix="hopserve-") as temporary:
        folder = Path(temporary)
        try:
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)
            config = yaml.safe_load((folder / _CONFIG).read_bytes())
            section = dict(config["handler"])
        except (OSError, zipfile.BadZipFile, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{archive}: is no archive of Hopserve: {error}") from None
        if not (folder / "signature.json").exists():
            raise ModelError(f"{archive}: has no model")
        settings = parse_settings(section)
        if graph is not None:
            settings = msgspec.structs.replace(settings, graph=str(graph))
        yield PackedModel(name, version, folder, read_signature(folder), settings)


def packed_versions(store: Path, name: str) -> dict[str, Path]:
    """The archives of a model in a store, by version."""
    there = {path.stem[len(name) + 1 :]: path for path in sorted(store.glob(f"{name}-*.mar"))}
    # Of `fraud` and `fraud-graph` only what follows like a version is one.
    return {found: path for found, path in there.items() if found[:1].isdigit()}


def _find(store: Path, name: str, version: str | None) -> tuple[Path, str]:
    there = packed_versions(store, name)
    if version is None and len(there) == 1:
        ((version, path),) = there.items()
        return path, version
    if version in there:
        return there[version], version
    if not there:
        raise ModelError(f"{store}: has no archive of a model {name}")
    listed = ", ".join(there)
    if version is None:
        raise ModelError(f"{store}: say which version of {name} is meant; there are: {listed}")
    raise ModelError(f"{store}: has no {name}-{version}.mar; versions of {name} there: {listed}")
