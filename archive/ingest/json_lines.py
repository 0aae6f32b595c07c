"""Mutations from JSON lines: each is one, or a request's lists of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from archive.ingest.rows import KINDS, Kind, ObjectRows, Segment
from archive.ingest.shape import GraphShape
from archive.tables.bad_rows import BadRows
from archive.tables.blocks import Block
from archive.tables.text_file import Text
from handler.graph.progress import Progress

_INT64 = np.iinfo(np.int64)
_IdTypes = {"int": Annotated[int, msgspec.Meta(ge=int(_INT64.min), le=int(_INT64.max))], "str": str}


class _Row(NamedTuple):
    kind: Kind
    line: int
    part: int
    content: msgspec.Struct


class JsonMutations:
    """The mutations in lines of JSON.

    Args:
        text: the lines.
        kind: what an object does that has no list in it.
        shape: of the graph.
        bad_rows: of this file.
    """

    def __init__(self, text: Text, kind: Kind, shape: GraphShape, bad_rows: BadRows) -> None:
        self._text = text
        self._kind = kind
        self._bad_rows = bad_rows
        types = {each: _row_type(each, shape) for each in KINDS}
        self._fields = ", ".join(types[kind].__struct_fields__)
        self._rows = msgspec.json.Decoder(types[kind])
        lists = [(each, list[types[each]] | msgspec.UnsetType, msgspec.UNSET) for each in KINDS]  # type: ignore[valid-type]
        self._lists = msgspec.json.Decoder(msgspec.defstruct("Lists", lists, forbid_unknown_fields=True))
        self._keys = msgspec.json.Decoder(dict[str, msgspec.Raw])

    def blocks(self, progress: Progress) -> Iterator[list[Segment]]:
        """All mutations of lines that are data."""
        for block in self._text.blocks(progress):
            yield self._alike(block) or self._mixed(block)

    def _alike(self, block: Block) -> list[Segment] | None:
        """What a block says if each line is one object; nothing if some are not."""
        lines = block.filled_lines() + block.line
        try:
            rows = self._rows.decode_lines(block.text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if len(rows) != len(lines):
            return None
        self._bad_rows.count(len(rows), 0, [])
        return [Segment(self._kind, ObjectRows(rows), lines, np.zeros_like(lines))]

    def _mixed(self, block: Block) -> list[Segment]:
        """What a block says, line by line."""
        rows: list[_Row] = []
        bad: list[tuple[int, str]] = []
        num_lines = 0
        for line, text in enumerate(block.text.split(b"\n"), start=block.line):
            if not text.strip():
                continue
            num_lines += 1
            try:
                rows += self._line(line, text)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                bad.append((line, str(error)))
        self._bad_rows.count(num_lines, len(bad), bad)
        return [_segment(kind, list(alike)) for kind, alike in groupby(rows, key=lambda row: row.kind)]

    def _line(self, line: int, text: bytes) -> list[_Row]:
        if not self._keys.decode(text).keys() & set(KINDS):
            try:
                return [_Row(self._kind, line, 0, self._rows.decode(text))]
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(f"{error}; {self._kind} takes {self._fields} here") from None
        lists = self._lists.decode(text)
        given = [
            (kind, content)
            for kind in KINDS
            for content in getattr(lists, kind) or ()  # UNSET is false
        ]
        return [_Row(kind, line, part, content) for part, (kind, content) in enumerate(given)]


def _segment(kind: Kind, rows: Sequence[_Row]) -> Segment:
    lines = np.array([row.line for row in rows], dtype=np.int64)
    parts = np.array([row.part for row in rows], dtype=np.int64)
    return Segment(kind, ObjectRows([row.content for row in rows]), lines, parts)


def _row_type(kind: Kind, shape: GraphShape) -> type[msgspec.Struct]:
    """What a row of a kind must be, no more and no less, in this graph."""
    node_id = _IdTypes[shape.id_type]
    fields: list[Any] = []
    if kind in {"add_nodes", "set_features"}:
        fields.append(("node_id", node_id))
        x = _vector(shape.feature_dim)
        if kind == "set_features":
            fields.append(("x", x))
        elif shape.feature_dim:
            fields.append(("x", x | msgspec.UnsetType, msgspec.UNSET))
        return msgspec.defstruct(kind, fields, forbid_unknown_fields=True)
    fields += [("source", node_id), ("target", node_id)]
    if kind == "add_edges":
        has = [("weight", float, shape.has_weight), ("time", float, shape.has_time)]
        fields += [(name, type_) for name, type_, is_there in has if is_there]
        if shape.attr_dim:
            fields.append(("attr", _vector(shape.attr_dim)))
    elif shape.has_time:
        fields.append(("time", float | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(kind, fields, forbid_unknown_fields=True)


def _vector(dim: int) -> Any:
    return Annotated[list[float], msgspec.Meta(min_length=dim, max_length=dim)]
