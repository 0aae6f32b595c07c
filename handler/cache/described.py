"""Reads and checks folders of files that a JSON file in them describes: tables, and their indexes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from handler.errors import TableError
from handler.graph.manifest import file_checksum, spot_checksum

_ALWAYS_HASHED_BYTES = 64 << 20


class Description(Protocol):
    """What says by which format it is written."""

    @property
    def format_version(self) -> int: ...


class Checksums(Protocol):
    """What is known of a file; see `handler.graph.manifest`."""

    @property
    def checksum(self) -> str: ...

    @property
    def spot_checksum(self) -> str: ...


_Kind = TypeVar("_Kind", bound=Description)


def read_description(path: Path, kind: type[_Kind], format_version: int, what: str) -> _Kind:
    """Read the description of `what`; anything but a valid one of this format is a `TableError`."""
    try:
        description = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise TableError(path, f"cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TableError(path, f"not a valid description of {what}: {error}") from None
    if description.format_version != format_version:
        raise TableError(
            path, f"format_version is {description.format_version}, this Hopserve reads {format_version}"
        )
    return description


def check_files(files: Mapping[Path, Checksums], num_bytes: int) -> None:
    """Check files byte by byte, or at spots if they have many bytes; a wrong one is a `TableError`."""
    whole = num_bytes <= _ALWAYS_HASHED_BYTES
    for path, entry in files.items():
        found = file_checksum(path) if whole else spot_checksum(path)
        if found != (entry.checksum if whole else entry.spot_checksum):
            raise TableError(path, "corrupt: its checksum is not the one in the manifest")
