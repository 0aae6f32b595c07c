"""Arrow's arrays are what NumPy sees of them."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa

from archive.tables.arrow import utf8_of


def test_the_utf8_of_a_part_of_a_column_is_that_part() -> None:
    for kind in (pa.string(), pa.large_string()):
        data, offsets = utf8_of(pa.array(["skipped", "é", "", "b"], kind)[1:3])
        assert [data[a:b].tobytes().decode() for a, b in pairwise(offsets)] == ["é", ""]
        assert utf8_of(pa.array([], kind))[1].tolist() == [0]
        assert utf8_of(pa.array([""], kind))[1].tolist() == [0, 0]
