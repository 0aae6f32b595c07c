"""The folder of an exported model: what is put into it, and when."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from handler.model.files import TRAINING_NAME
from handler.model.signature import SUFFIXES, Signature, file_checksum, write_signature

LAYERS = "layers"


def signed(signature: Signature, folder: Path) -> Signature:
    """Write the signature of the files that are in a folder; what it then says, checksums and all."""
    checksums = {name: file_checksum(folder / name) for name in signature.files}
    signature = msgspec.structs.replace(signature, checksums=checksums)
    write_signature(folder, signature)
    return signature


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A folder beside the target; what is in it at the end replaces the model that was there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        part = Path(temporary)
        yield part
        folder.mkdir(exist_ok=True)
        # First, so that a model never lies beside the layers of another.
        shutil.rmtree(folder / LAYERS, ignore_errors=True)
        (folder / TRAINING_NAME).unlink(missing_ok=True)  # of the training of the model before
        for stale in [
            folder / f"{stem}.{suffix}" for stem in ("model", "head") for suffix in SUFFIXES.values()
        ]:
            if stale.name not in {file.name for file in part.iterdir()}:
                stale.unlink(missing_ok=True)
        for file in part.iterdir():
            if file.name != LAYERS:
                shutil.move(file, folder / file.name)
        if (part / LAYERS).exists():
            shutil.move(part / LAYERS, folder / LAYERS)
