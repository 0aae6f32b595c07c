"""The form in which a request's mark lies in a store."""

from __future__ import annotations

import msgspec

from handler.errors import LogCorrupt
from handler.log.protocol import Mark


def pack_mark(mark: Mark) -> bytes:
    """A mark as JSON, which a person can read in the store."""
    return msgspec.json.encode(mark)


def unpack_mark(data: bytes, where: str) -> Mark:
    """The mark that was packed; anything else is `LogCorrupt`."""
    try:
        return msgspec.json.decode(data, type=Mark)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogCorrupt(where, f"a request's mark is not valid: {error}") from None
