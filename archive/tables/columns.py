"""Columns as arrays of one type, where rows whose value has another are refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from archive.tables.arrow import empty, filled, is_text, is_utf8, mask_of, plain, raw_of
from archive.tables.bad_rows import RowCheck
from archive.tables.notation import INTEGER, INTEGERS, NUMBERS

_PLAIN_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
_LARGEST = np.iinfo(np.int64).max


def as_int64(check: RowCheck, column: str, advice: str = "") -> NDArray[np.int64]:
    """Integers: int64 [num_rows], where rows that have none are refused.

    Text may have spaces around a number, a plus sign and leading zeros: 007 is 7.
    """
    array = check.column(column)
    if is_text(array):
        values, parsed = INTEGERS.parse(array)
    elif pa.types.is_integer(array.type):
        numbers = filled(array, 0)
        values, parsed = numbers.astype(np.int64), numbers <= _LARGEST
    else:
        raise check.wrong_type(column, f"integers{advice}")
    refuse_empty(check, column)
    if not parsed.all():
        text = pc.ascii_trim_whitespace(pc.cast(array, pa.large_string(), safe=False))
        too_large = mask_of(pc.match_substring_regex(text, INTEGER))
        check.refuse_value(~parsed & too_large, column, f"does not fit a 64-bit integer{advice}")
        check.refuse_value(~parsed, column, f"is not an integer{advice}")
    return values


def as_float(
    check: RowCheck, column: str, dtype: str = "float32", *, gaps: bool = False
) -> NDArray[np.floating]:
    """Finite numbers: `dtype` [num_rows], where rows that have none are refused.

    With `gaps` a value that is empty, or not finite in `dtype`, is NaN instead.
    """
    numbers, parsed = numbers_in(check, column)
    with np.errstate(over="ignore"):
        values = numbers.astype(dtype)
    if not gaps:
        refuse_empty(check, column)
    if not parsed.all():
        check.refuse_value(~parsed & ~empty(check.column(column)), column, "is not a number")
    finite = parsed & np.isfinite(values)
    values[~finite] = np.nan
    if not gaps:
        check.refuse_value(~np.isfinite(numbers), column, "is not finite")
        check.refuse_value(~finite, column, f"does not fit {dtype}")
    return values


def as_text(check: RowCheck, column: str, *, may_be_empty: bool = False) -> pa.Array:
    """Text: string or large_string [num_rows], where rows that have none are refused, or have ""."""
    array = check.column(column)
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        array = pc.cast(array, pa.string())
    elif not is_text(array):
        raise check.wrong_type(column, "text or integers")
    if not may_be_empty:
        refuse_empty(check, column)
    array = pc.fill_null(array, "")
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        bad = np.array([not is_utf8(raw_of(value)) for value in array], dtype=np.bool_)
        check.refuse_value(bad, column, "is not UTF-8 text")
        return pc.if_else(pa.array(bad), pa.scalar("", array.type), array)
    return array


def numbers_in(check: RowCheck, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """float64 [num_rows], and bool [num_rows], where there is a number at all; none is refused yet."""
    array = check.column(column)
    if is_text(array):
        return NUMBERS.parse(array)
    types = pa.types
    kinds = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    if not any(is_kind(array.type) for is_kind in kinds):
        raise check.wrong_type(column, "numbers")
    return filled(pc.cast(array, pa.float64(), safe=False), 0.0), mask_of(array.is_valid())


def refuse_empty(check: RowCheck, column: str) -> None:
    """Refuse the rows that have nothing in a column."""
    check.refuse(empty(check.column(column)), lambda row: f"column {column!r} is empty")


def plain_integers(array: pa.Array) -> NDArray[np.bool_]:
    """Bool [len(array)]: where an integer is, in text written as integers are (not 007), or nothing."""
    array = plain(array)
    if not is_text(array):
        return np.full(len(array), pa.types.is_integer(array.type))
    text = pc.ascii_trim_whitespace(array)
    is_plain = mask_of(pc.match_substring_regex(text, _PLAIN_INTEGER))
    _, fits = INTEGERS.parse(text.filter(pa.array(is_plain)))
    is_plain[is_plain] = fits
    return is_plain | empty(text)
