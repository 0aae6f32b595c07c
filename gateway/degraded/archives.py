"""Reads what a model archive says of itself, without unpacking or loading its model."""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import yaml

from handler.errors import ModelError
from handler.model.files import SIGNATURE_NAME
from handler.model.signature import Signature, read_signature
from handler.settings import Settings, parse_settings

_MANIFEST = "MAR-INF/MANIFEST.json"
_CONFIG = "model-config.yaml"
_MAX_BYTES = 16 << 20  # of each of these files
# What zipfile raises of files that are no archives, are written just now, or are packed in other ways.
_UNREADABLE = (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, KeyError, ValueError)


@dataclass(frozen=True)
class Archive:
    """A model version, as its archive describes it."""

    model: str
    version: str
    signature: Signature
    settings: Settings


class _Model(msgspec.Struct, rename="camel"):
    model_name: str
    model_version: str


class _Manifest(msgspec.Struct):
    model: _Model


def read_archive(path: Path) -> Archive | None:
    """What an archive holds; none if it is of another handler, and holds no model of Hopserve.

    Raises:
        ModelError: it is no archive, or what it says of its model cannot be read.
        SettingsError: its settings cannot be used.
    """
    try:
        with zipfile.ZipFile(path) as packed:
            if not {_CONFIG, SIGNATURE_NAME} <= set(packed.namelist()):
                return None
            manifest, config, signature = (
                _member(packed, name) for name in (_MANIFEST, _CONFIG, SIGNATURE_NAME)
            )
        model = msgspec.json.decode(manifest, type=_Manifest).model
        content = yaml.safe_load(config)
    except (*_UNREADABLE, yaml.YAMLError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path}: not an archive of Hopserve: {' '.join(str(error).split())}") from None
    section = content.get("handler") if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise ModelError(f"{path}: its {_CONFIG} has no section `handler`")
    return Archive(model.model_name, model.model_version, _signature(signature), parse_settings(section))


def _member(packed: zipfile.ZipFile, name: str) -> bytes:
    if packed.getinfo(name).file_size > _MAX_BYTES:
        raise ValueError(f"{name} has more than {_MAX_BYTES} bytes")
    return packed.read(name)


def _signature(content: bytes) -> Signature:
    with TemporaryDirectory(prefix="hopserve-") as folder:
        Path(folder, SIGNATURE_NAME).write_bytes(content)
        return read_signature(Path(folder))
