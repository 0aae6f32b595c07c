"""How numbers and times are written in text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from archive.tables.arrow import empty, filled, mask_of, python_of, utf8_of
from archive.tables.format import NUMBER

INTEGER = r"^[+-]?[0-9]+$"
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class Notation:
    """How values of one kind are written.

    Args:
        fast: turns strings into numbers, all or none (`ArrowInvalid`).
        plain: a regular expression; what it matches `fast` can nearly always read.
        slow: reads one string without spaces around it, or returns none.
        dtype: of the numbers.
    """

    fast: Callable[[pa.Array], NDArray[Any]]
    plain: str
    slow: Callable[[str], float | None]
    dtype: type[np.generic]

    def parse(self, text: pa.Array) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The numbers in strings, and bool [len(text)], where there is one.

        All at once if they allow it; else those that are plain at once and the others one by one.
        """
        if not text.null_count:
            try:
                return self.fast(text), np.ones(len(text), dtype=np.bool_)
            except pa.ArrowInvalid:
                pass
        trimmed = pc.ascii_trim_whitespace(pc.fill_null(text, ""))
        parsed = mask_of(pc.match_substring_regex(trimmed, self.plain))
        values = np.zeros(len(text), dtype=self.dtype)
        try:
            values[parsed] = self.fast(trimmed.filter(pa.array(parsed)))
        except pa.ArrowInvalid:
            parsed = np.zeros(len(text), dtype=np.bool_)
        for row in np.flatnonzero(~parsed & ~empty(trimmed)).tolist():
            value = self.slow(python_of(trimmed[row]))
            if value is not None:
                values[row], parsed[row] = value, True
        return values, parsed


def seconds_of(times: pa.Array) -> NDArray[np.float64]:
    """Dates or timestamps as seconds since 1970; nulls are 0."""
    if not pa.types.is_timestamp(times.type):
        times = pc.cast(times, pa.timestamp("ms"))
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[times.type.unit]
    return filled(pc.cast(times, pa.int64()), 0) / per_second


def is_calendar_time(text: str) -> bool:
    """Whether text is a time as ISO 8601 has it, and no number."""
    return _float_of(text) is None and _calendar_time_of(text) is not None


def _ints(text: pa.Array) -> NDArray[np.int64]:
    values: NDArray[np.int64] = pc.cast(text, pa.int64()).to_numpy(zero_copy_only=False)
    content, offsets = utf8_of(text)
    # Arrow reads 0x1f as well, which is nobody's decimal number.
    if len(text) and content[offsets[0] : offsets[-1]].max() > ord("9"):
        raise pa.ArrowInvalid("hexadecimal")
    return values


def _int_of(text: str) -> int | None:
    value = int(text) if re.match(INTEGER, text) else None
    return value if value is not None and _INT64.min <= value <= _INT64.max else None


def _floats(text: pa.Array) -> NDArray[np.float64]:
    values: NDArray[np.float64] = pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False)
    return values


def _float_of(text: str) -> float | None:
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def _calendar_times(text: pa.Array) -> NDArray[np.float64]:
    for unit in ("us", "ns"):
        for zone in (None, "UTC"):  # Arrow wants all times with a zone, or all without
            try:
                return seconds_of(pc.cast(text, pa.timestamp(unit, zone)))
            except pa.ArrowInvalid:
                continue
    raise pa.ArrowInvalid("no times")


def _calendar_time_of(text: str) -> float | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


INTEGERS = Notation(_ints, r"^-?[0-9]{1,18}$", _int_of, np.int64)
NUMBERS = Notation(_floats, NUMBER, _float_of, np.float64)
CALENDAR_TIMES = Notation(_calendar_times, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}", _calendar_time_of, np.float64)
