"""A small server that answers as the model `graph` does, and fails when it is told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KINDS = ("add_nodes", "set_features", "remove_edges", "add_edges")


@dataclass
class FakeGraph:
    """A live graph that keeps what it is told.

    Args:
        info: what it says of itself.
        config: the configuration that leads to it.
        faults: of the next requests with mutations, each of which takes one: an HTTP status, `drop` (the
            connection, before anything is done), `lose` (the answer, when all is done), or none.
        known: node ids that there are, or none if every one is.
    """

    config: Path
    info: dict[str, Any]
    faults: list[Any] = field(default_factory=list)
    known: set[Any] | None = None
    applied: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    _answers: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def edges(self) -> list[tuple[Any, Any]]:
        return [(row["source"], row["target"]) for kind, row in self.applied if kind == "add_edges"]

    def answer(self, body: bytes) -> tuple[int, dict[str, Any] | None]:
        """A status and an answer, or none if the connection breaks."""
        request = json.loads(body)
        with self._lock:
            if request == {"info": True}:
                return 200, self.info | {"seq": len(self.applied)}
            self.bodies.append(body)
            fault = self.faults.pop(0) if self.faults else None
            if fault == "drop":
                return 0, None
            if isinstance(fault, int):
                return fault, {"error": {"code": "made_up", "message": f"made up: {fault}"}}
            status, answer = self._apply(request)
            return (0, None) if fault == "lose" else (status, answer)

    def _apply(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        request_id = request["request_id"]
        assert len(request_id) <= 128
        if request_id in self._answers:
            same, answer = self._answers[request_id]
            if same != request:
                return 409, {"error": {"code": "request_id_reused", "message": "another one came before"}}
            return 200, answer | {"repeated": True}
        rows = [(kind, row) for kind in KINDS for row in request.get(kind, [])]
        assert rows
        assert len(rows) <= 100_000
        for kind in KINDS:
            for place, row in enumerate(request.get(kind, [])):
                if row.get("weight", 0) > 1e30:
                    message = f"{kind}[{place}]: weight is too large"
                    return 400, {"error": {"code": "malformed", "message": message}}
                for node_id in (row.get("source"), row.get("target")):
                    if (
                        self.known is not None
                        and node_id not in self.known
                        and not request.get("create_missing")
                    ):
                        message = f"the graph has no node {node_id!r}"
                        return 404, {"error": {"code": "unknown_node", "message": message}}
        first = len(self.applied) + 1
        self.applied += rows
        self.requests.append(request)
        answer = {"first_seq": first, "last_seq": len(self.applied), "repeated": False}
        self._answers[request_id] = request, answer
        return 200, answer


@contextmanager
def fake_graph(
    folder: Path,
    *,
    id_type: str = "int",
    feature_dim: int = 0,
    weight: bool = False,
    time: bool = False,
    attr_dim: int = 0,
    max_request_size: int = 6_553_500,
) -> Iterator[FakeGraph]:
    """A server, until the end of the block."""
    info = {
        "snapshot": "s",
        "id_type": id_type,
        "feature_dim": feature_dim,
        "edge": {"weight": weight, "time": time, "attr_dim": attr_dim},
        "num_nodes": 0,
        "num_edges": 0,
    }
    graph = FakeGraph(folder / "config.properties", info)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # an answer in two parts would wait for the first to be acknowledged

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert len(body) <= max_request_size
            assert self.path == "/predictions/graph"
            status, answer = graph.answer(body)
            if answer is None:
                self.close_connection = True
                return
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        port = server.server_address[1]
        graph.config.write_text(
            f"inference_address=http://127.0.0.1:{port}\ndisable_token_authorization=true\n"
            f"max_request_size={max_request_size}\n"
        )
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield graph
        finally:
            server.shutdown()
            thread.join()
