"""The course of one ingest: batches are noted, sent, and noted again when they have arrived."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from archive.ingest.batches import Batch, Limits, after, batches
from archive.ingest.files import MutationFile
from archive.ingest.journal import Journal
from archive.ingest.rows import KINDS, Kind
from gateway.errors import Refused, UpstreamError
from gateway.upstream.in_flight import InFlight
from gateway.upstream.mutations import Applied, Mutations
from scripts.cli.options import Bars, say

_LAST_ANSWERS_S = 5.0
_PLACE = re.compile(rf"\b({'|'.join(KINDS)})\[(\d+)\]")
_UNKNOWN_NODE = re.compile(r"has no node (.+)$")


class Ingest:
    """Sends a file, or what is left of it.

    Args:
        path: what messages call it.
        mutations: where it goes.
        journal: of this file.
        create_missing: whether edges make the nodes that they name.
    """

    def __init__(self, path: Path, mutations: Mutations, journal: Journal, *, create_missing: bool) -> None:
        self._path = path
        self._mutations = mutations
        self._journal = journal
        self._create_missing = create_missing
        self._num_before = journal.state.num_mutations
        self._num_repeated = 0
        self._began = self._ended = time.monotonic()

    def run(self, file: MutationFile, limits: Limits, num_connections: int, *, at_once: bool) -> None:
        """Send everything.

        Args:
            file: which is open.
            limits: of a request.
            num_connections: requests at a time.
            at_once: send whatever has come, and await its answer, before more is read.

        Raises:
            HopserveError: it could not be sent; it was told how far it came.
        """
        self._began = time.monotonic()
        in_flight = InFlight(self._send)
        try:
            for batch in self._remaining(file, limits, at_once=at_once):
                self._note(in_flight.finish(num_connections - 1))
                self._journal.sending(batch)
                in_flight.begin(batch)
                if at_once:
                    self._note(in_flight.finish())
            self._note(in_flight.finish())
        except BaseException:
            self._give_up(in_flight)
            raise
        self._ended = time.monotonic()

    def summary(self) -> str:
        """What was done, in one line."""
        state = self._journal.state
        num_sent = state.num_mutations - self._num_before
        if not num_sent:
            before = f" after line {state.last_line}, up to which it was sent before (or --restart)"
            return f"{self._path}: nothing to send{before if state.sent else ''}"
        seconds = self._ended - self._began
        repeated = f" ({self._num_repeated} of them the server had already)" if self._num_repeated else ""
        return (
            f"{self._path}: {num_sent} mutations{repeated} in {seconds:.1f} s ({num_sent / seconds:,.0f}/s),"
            f" last seq {state.last_seq}"
        )

    def _remaining(self, file: MutationFile, limits: Limits, *, at_once: bool) -> Iterator[Batch]:
        sent = self._journal.state.sent
        blocks = file.blocks(Bars())
        rest = after(blocks, sent[0].place) if sent else blocks
        sizes = [known.num_mutations for known in sent]
        return self._journal.remaining(batches(self._path, rest, limits, first_sizes=sizes, at_once=at_once))

    def _send(self, batch: Batch) -> Applied:
        request_id = self._journal.request_id(batch)
        try:
            return self._mutations.send(batch.content, request_id, create_missing=self._create_missing)
        except Refused as refusal:
            raise UpstreamError(f"{self._path}:{_blamed(batch, refusal)}: {refusal}") from None

    def _note(self, arrived: Iterable[tuple[Batch, Applied]]) -> None:
        for batch, applied in arrived:
            self._journal.acknowledged(batch, applied.last_seq)
            self._num_repeated += len(batch) if applied.repeated else 0

    def _give_up(self, in_flight: InFlight[Batch, Applied]) -> None:
        """Note what arrives all the same, and tell how far it came."""
        self._mutations.stop()
        try:
            self._note(in_flight.settle(_LAST_ANSWERS_S))
        finally:
            say(self._how_far())

    def _how_far(self) -> str:
        state = self._journal.state
        if not state.num_mutations:
            return f"{self._path}: nothing of it was acknowledged"
        told = (
            f"{self._path}: {state.num_mutations} mutations were acknowledged, up to line {state.last_line},"
            f" the last as seq {state.last_seq}"
        )
        return told + ("; run the same again to go on" if self._journal.is_kept else "")


def _blamed(batch: Batch, refusal: Refused) -> str:
    """The line of a file that made the server refuse a batch, or the lines that are all it can be."""
    place, node = _PLACE.search(refusal.message), _UNKNOWN_NODE.search(refusal.message)
    line = None
    if place:
        line = batch.line_of(cast("Kind", place[1]), int(place[2]))
    elif node:
        line = batch.line_naming(node[1])
    return str(line) if line is not None else f"{batch.place.line}-{batch.last_line}"
