"""Arrow arrays as NumPy sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def plain(array: pa.Array) -> pa.Array:
    """The same values as neither a dictionary nor bytes of unknown meaning: those are text."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_binary(array.type):
        return array.view(pa.string())
    if pa.types.is_large_binary(array.type):
        return array.view(pa.large_string())
    return array.cast(pa.large_string()) if pa.types.is_string_view(array.type) else array


def is_text(array: pa.Array) -> bool:
    """Whether a plain array has strings."""
    return bool(pa.types.is_string(array.type) or pa.types.is_large_string(array.type))


def is_utf8(text: bytes) -> bool:
    """Whether bytes are text; what Arrow calls a string need not be."""
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False


def python_of(value: pa.Scalar) -> Any:
    """A value for people and for Python's parsers: text with escapes where it is not UTF-8."""
    if isinstance(value, (pa.StringScalar, pa.LargeStringScalar)) and value.is_valid:
        return raw_of(value).decode(errors="backslashreplace")
    return value.as_py()


def raw_of(value: pa.Scalar) -> bytes:
    """The bytes of a string."""
    return bytes(value.as_buffer())


def mask_of(array: pa.Array) -> NDArray[np.bool_]:
    """Bool [len(array)]: where it says true."""
    return filled(array, nothing=False)


def filled(array: pa.Array, nothing: Any) -> NDArray[Any]:
    """The values, with `nothing` for nulls."""
    values: NDArray[Any] = pc.fill_null(array, pa.scalar(nothing, array.type)).to_numpy(zero_copy_only=False)
    return values


def empty(array: pa.Array) -> NDArray[np.bool_]:
    """Bool [len(array)]: where a plain array has null, or text without anything but spaces."""
    if not is_text(array):
        return mask_of(array.is_null())
    return ~mask_of(pc.and_not(pc.greater(pc.binary_length(array), 0), pc.ascii_is_space(array)))


def utf8_of(text: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 of strings without nulls, and int64 [num_strings + 1], where each starts in it."""
    _, offsets, data = text.buffers()
    width = np.int64 if pa.types.is_large_string(text.type) else np.int32
    if offsets is None or len(text) == 0:
        return np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    starts = np.frombuffer(offsets, dtype=width)[text.offset : text.offset + len(text) + 1]
    content = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return content, starts.astype(np.int64)
