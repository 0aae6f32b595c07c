"""Takes mutations in: checks them against the graph as it is, and makes them durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from handler.changes import Change
from handler.errors import (
    LogError,
    LogMoved,
    LogUncertain,
    NotLogged,
    RequestError,
    ReusedRequestId,
    Unconfirmed,
    as_value,
)
from handler.graph.follower import Follower
from handler.graph.ids import NodeId
from handler.graph.live_graph import LiveGraph
from handler.graph.mutations import encode_mutations, split_mutations
from handler.log.protocol import Log, Mark, Record
from handler.resolver import Resolver

_TRIES = 50


@dataclass(frozen=True)
class Submitted:
    """A change as it came.

    Args:
        body: its bytes, by which the same request is known again.
    """

    change: Change
    body: bytes


@dataclass(frozen=True)
class Accepted:
    """A change that is durable.

    Args:
        first_seq, last_seq: of its mutations; `first_seq` is one more where there was nothing to do.
        repeated: whether it came before, and was not applied again.
    """

    first_seq: int
    last_seq: int
    repeated: bool = False


class Intake:
    """Writes to the log what the graph can take.

    Several may write to one log: who was slower looks at the graph again.

    Args:
        follower: of the graph and its log.
    """

    def __init__(self, follower: Follower[Any]) -> None:
        self._follower = follower
        self._log = follower.log
        #: What is known of each edge.
        self.edge_fields = follower.edge_fields

    def accept(self, submitted: Sequence[Submitted]) -> list[Accepted | RequestError]:
        """Make changes durable, all in one step; each is accepted or refused as a whole."""
        try:
            for _ in range(_TRIES):
                try:
                    return self._try_to_accept(submitted)
                except LogMoved:
                    continue
            reason = "others write to it all the time"
        except LogUncertain as error:
            return [Unconfirmed(str(error))] * len(submitted)
        except LogError as error:
            reason = str(error)
        except RequestError as error:  # the graph is known to be wrong
            return [error] * len(submitted)
        return [NotLogged(reason)] * len(submitted)

    def _try_to_accept(self, submitted: Sequence[Submitted]) -> list[Accepted | RequestError]:
        with self._follower.at_the_end() as graph:
            after_seq = graph.seq
            batch = _Batch(graph, self._log)
            results = [batch.add(each) for each in submitted]
        if batch.records:
            self._log.append(batch.records, batch.marks, after_seq)
        return results


class _Batch:
    """Changes that become durable together, each checked as if those before it were applied."""

    def __init__(self, graph: LiveGraph, log: Log) -> None:
        self.records: list[Record] = []
        self.marks: list[Mark] = []
        self._graph = graph
        self._log = log
        self._seq = graph.seq
        self._new_nodes: dict[NodeId, int] = {}

    def add(self, submitted: Submitted) -> Accepted | RequestError:
        """Add a change, or say why it cannot be."""
        change, request_id = submitted.change, submitted.change.request_id
        digest = xxhash.xxh3_128_hexdigest(submitted.body) if request_id is not None else ""
        try:
            if request_id is not None and (mark := self._known(request_id)) is not None:
                if mark.digest != digest:
                    raise ReusedRequestId(request_id)
                return Accepted(mark.first_seq, mark.last_seq, repeated=True)
            resolved = Resolver(self._graph, self._new_nodes).resolve(change)
        except RequestError as error:
            return as_value(error)
        first_seq = self._seq + 1
        for part in split_mutations(resolved):
            self.records.append(Record(self._seq + 1, self._seq + len(part), encode_mutations(part)))
            self._seq += len(part)
        if request_id is not None and self._seq >= first_seq:
            self.marks.append(Mark(request_id, digest, first_seq, self._seq))
        for place, node_id in enumerate(resolved.node_ids):
            self._new_nodes[node_id] = resolved.first_node + place
        return Accepted(first_seq, self._seq)

    def _known(self, request_id: str) -> Mark | None:
        for mark in self.marks:
            if mark.request_id == request_id:
                return mark
        return self._log.find(request_id)
