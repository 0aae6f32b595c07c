"""What happens to a batch of requests that change a graph, or ask what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handler import metrics
from handler.changes import InfoRequest, asked, parse_change
from handler.errors import LogError, MalformedRequest, RequestError, as_value
from handler.graph.follower import Follower
from handler.graph.live_graph import LiveGraph
from handler.intake import Accepted, Intake, Submitted
from handler.requests import Response, encode_answer, encode_error
from handler.settings import GraphSettings
from handler.standing import gauges_of


class ChangeService:
    """Makes changes to one graph durable, those of a batch in one step.

    Args:
        follower: of the graph and its log; closed with this.
    """

    def __init__(
        self, follower: Follower[LiveGraph], settings: GraphSettings, counters: metrics.Counters
    ) -> None:
        self._follower = follower
        self._settings = settings
        self._counters = counters
        self._intake = Intake(follower)

    def answer(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """One response per request, in order; a request without a usable body comes as its error."""
        with self._counters.timed("parse"):
            parsed = [self._parse(body) for body in bodies]
        submitted = [each for each in parsed if isinstance(each, Submitted)]
        with self._counters.timed("store"):
            results = iter(self._intake.accept(submitted))
        responses = []
        for each in parsed:
            answered: Accepted | RequestError | InfoRequest
            answered = next(results) if isinstance(each, Submitted) else each
            if isinstance(answered, Accepted) and isinstance(each, Submitted) and not answered.repeated:
                for kind, count in asked(each.change).items():
                    self._counters.add(metrics.MUTATIONS, count, kind)
            responses.append(self._respond(answered))
        self._counters.add_batch((response.status.value, response.code) for response in responses)
        return responses

    def explain(self, bodies: Sequence[bytes | RequestError]) -> list[Response]:
        """A graph has no answers that could be explained."""
        refused = MalformedRequest("this is a graph, not a model: there is nothing to explain")
        self._counters.add_batch((refused.status.value, refused.code) for _ in bodies)
        return [encode_error(refused) for _ in bodies]

    def gauges(self) -> dict[metrics.Metric, float]:
        """How the graph stands now."""
        return gauges_of(self._follower.standing())

    def close(self) -> None:
        """Let go of the graph."""
        self._follower.close()

    def _parse(self, body: bytes | RequestError) -> Submitted | InfoRequest | RequestError:
        if isinstance(body, RequestError):
            return body
        try:
            change = parse_change(body, self._settings.max_mutations_per_request)
        except RequestError as error:
            return as_value(error)
        return change if isinstance(change, InfoRequest) else Submitted(change, body)

    def _respond(self, answered: Accepted | InfoRequest | RequestError) -> Response:
        if isinstance(answered, RequestError):
            return encode_error(answered)
        if isinstance(answered, InfoRequest):
            try:
                with self._follower.reading() as graph:
                    answer = self._info(graph)
            except RequestError as error:
                return encode_error(as_value(error))
        else:
            answer = {
                "first_seq": answered.first_seq,
                "last_seq": answered.last_seq,
                "repeated": answered.repeated,
            }
        return encode_answer(answer, self._settings.max_response_bytes)

    def _info(self, graph: LiveGraph) -> dict[str, Any]:
        manifest, fields, features = graph.manifest, graph.edge_fields, graph.features
        return {
            "name": manifest.name,
            "snapshot": manifest.snapshot_id,
            "snapshot_seq": manifest.seq,
            "seq": graph.seq,
            "log": self._log_info(),
            "num_nodes": graph.num_nodes,
            "num_edges": graph.num_edges,
            "id_type": "str" if graph.ids.id_type is str else "int",
            "feature_dim": None if features is None else features.shape[1],
            "edge": {"weight": fields.weight, "time": fields.time, "attr_dim": fields.attr_dim},
            "undirected": manifest.rules.undirected,
            "duplicates": manifest.rules.duplicates,
            "self_loops": manifest.rules.self_loops,
            "max_edge_age": manifest.rules.max_edge_age,
            "overlay_bytes": graph.nbytes,
        }

    def _log_info(self) -> dict[str, Any]:
        """The log's ends and how far this worker is behind, or why they are not known."""
        try:
            log = self._follower.log
            return {"first_seq": log.first_seq(), "last_seq": log.last_seq(), "lag": self._follower.lag()}
        except LogError as error:
            return {"error": str(error)}
