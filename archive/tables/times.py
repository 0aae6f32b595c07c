"""Columns of times, whose first value says what they count in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from archive.tables.arrow import empty, is_text, python_of
from archive.tables.bad_rows import RowCheck
from archive.tables.columns import numbers_in, refuse_empty
from archive.tables.notation import CALENDAR_TIMES, is_calendar_time, seconds_of

_EXACT = 2.0**53


class TimeColumn:
    """Times as seconds or whatever the user counts in; its first value decides for the whole column.

    Numbers stay as they are. ISO 8601 times and Parquet's timestamps become seconds since 1970, in UTC
    where they name no time zone.
    """

    def __init__(self, column: str) -> None:
        self.column = column
        self._is_calendar: bool | None = None

    def read(self, check: RowCheck) -> NDArray[np.float64]:
        """float64 [num_rows], where rows without a time are refused."""
        array = check.column(self.column)
        refuse_empty(check, self.column)
        if pa.types.is_temporal(array.type) and not pa.types.is_time(array.type):
            return seconds_of(array)
        if is_text(array) and self._says_calendar(array):
            times, parsed = CALENDAR_TIMES.parse(array)
            check.refuse_value(~parsed, self.column, "is not an ISO 8601 time, as the first one is")
            return times
        return self._counted(check)

    def _says_calendar(self, array: pa.Array) -> bool:
        if self._is_calendar is None:
            given = np.flatnonzero(~empty(array))
            if not len(given):
                return False
            self._is_calendar = is_calendar_time(python_of(array[int(given[0])]).strip())
        return self._is_calendar

    def _counted(self, check: RowCheck) -> NDArray[np.float64]:
        times, parsed = numbers_in(check, self.column)
        check.refuse_value(
            ~parsed, self.column, "is neither a number nor, like the first one, an ISO 8601 time"
        )
        check.refuse_value(~np.isfinite(times), self.column, "is not finite")
        check.refuse_value(
            np.abs(times) >= _EXACT, self.column, "is 2**53 or more, where float64 would round it"
        )
        return times
