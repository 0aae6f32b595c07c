"""The one error tree of Hopserve.

HopserveError
├── RequestError            a row's own fault or fate; carries `status` and `code` for its answer
│   ├── MalformedRequest    400 malformed
│   ├── NoIndex             400 no_index
│   ├── UnknownNode         404 unknown_node
│   ├── TooManyNodes        413 too_many_nodes
│   ├── TooManyMutations    413 too_many_mutations
│   ├── ResponseTooLarge    413 response_too_large
│   ├── ReusedRequestId     409 request_id_reused
│   ├── OverBudget          429 over_budget
│   ├── TooLargeForMemory   503 out_of_memory
│   ├── NotFresh            503 not_fresh
│   ├── NotReady            503 not_ready
│   │   └── Unreadable      503 not_ready
│   ├── NotLogged           503 not_logged
│   ├── Unconfirmed         503 unconfirmed
│   └── InternalError       500 internal
│       └── NonFiniteOutput 500 non_finite_output
├── SettingsError           a settings value that cannot be used; names the key
├── GraphError
│   ├── GraphInputError     arrays or files that are no graph
│   └── SnapshotError       a snapshot that cannot be opened; names the file
├── LogError                the log of mutations
│   ├── LogUnavailable      its store cannot be reached or written, or is full
│   │   └── LogUncertain    whether it was written is not known
│   ├── LogMoved            someone else appended first
│   ├── LogGap              mutations are missing that a reader has yet to read
│   └── LogCorrupt          what it holds cannot be right
├── LockError               a lock that another process has; names the file
├── TableError              precomputed outputs that cannot be opened or made; names the file
├── ModelError              an exported model that cannot be made or loaded
└── OutOfMemory             a forward that is too large for its device; a smaller one may do

An error is built from values and writes its own message. Messages may hold any text; the HTTP reason
phrase is a fixed ASCII one per class, because TorchServe loses a worker over any other.
"""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import ClassVar


class HopserveError(Exception):
    """Anything that Hopserve itself refuses or fails at."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class RequestError(HopserveError):
    """A request, or one row of it, that is answered with an error."""

    status: ClassVar[HTTPStatus]
    code: ClassVar[str]


class MalformedRequest(RequestError):
    """The request does not say what it asks in a form we know."""

    status = HTTPStatus.BAD_REQUEST
    code = "malformed"


class NoIndex(RequestError):
    """Similar nodes are asked for, and there is nothing to find them by."""

    status = HTTPStatus.BAD_REQUEST
    code = "no_index"

    def __init__(self, metric: str) -> None:
        super().__init__(
            f"this model version has no index of similar nodes by {metric}:"
            f" `hopserve precompute --index {metric}` makes one"
        )


class UnknownNode(RequestError):
    """The graph has no node with this id."""

    status = HTTPStatus.NOT_FOUND
    code = "unknown_node"

    def __init__(self, node_id: object, where: str = "") -> None:
        super().__init__(f"{where}{': ' if where else ''}the graph has no node {_shown(node_id)}")


class TooManyNodes(RequestError):
    """One request names more nodes than a request may."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too_many_nodes"

    def __init__(self, asked: int, allowed: int) -> None:
        super().__init__(f"{asked} nodes asked for, at most {allowed} are allowed in one request")


class TooManyMutations(RequestError):
    """One request asks for more mutations than a request may."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too_many_mutations"

    def __init__(self, asked: int, allowed: int) -> None:
        super().__init__(f"{asked} mutations asked for, at most {allowed} are allowed in one request")


class ResponseTooLarge(RequestError):
    """The answer would be larger than the server can send."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "response_too_large"

    def __init__(self, size_bytes: int, allowed_bytes: int) -> None:
        super().__init__(
            f"the answer has {size_bytes} bytes, at most {allowed_bytes} can be sent:"
            " ask for fewer nodes or return less"
        )


class OverBudget(RequestError):
    """A node's sample is larger than one forward may hold, and the settings say not to cut it."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "over_budget"

    def __init__(self, max_nodes: int, max_edges: int) -> None:
        super().__init__(
            f"the node's sample has more than the {max_nodes} nodes or {max_edges} edges that are allowed:"
            " ask for fewer hops or neighbors"
        )


class TooLargeForMemory(RequestError):
    """The forward of one row alone needs more memory than there is now."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "out_of_memory"

    def __init__(self) -> None:
        super().__init__("there is not enough memory for this node's sample: ask for fewer hops or neighbors")


class OverTime(RequestError):
    """The explanations that came together have taken all the time that they may."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "over_time"

    def __init__(self, allowed_ms: int) -> None:
        super().__init__(
            f"explanations that came together have taken their {allowed_ms} ms: ask for fewer, or again"
        )


class ReusedRequestId(RequestError):
    """A request came under the id of another one."""

    status = HTTPStatus.CONFLICT
    code = "request_id_reused"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"another request came as {_shown(request_id)} before: give each an id of its own")


class NotFresh(RequestError):
    """The worker has not seen as much of the log as the client asks for."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "not_fresh"

    def __init__(self, wanted_seq: int, seen_seq: int) -> None:
        super().__init__(f"min_seq is {wanted_seq}, but this worker has seen mutations up to {seen_seq} only")


class NotReady(RequestError):
    """The worker knows that its graph is not what it should be."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "not_ready"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the worker's graph is not up to date, and cannot be brought up: {reason}")


class Unreadable(NotReady):
    """A part of the graph that one answer needs cannot be read now; other answers may not need it."""

    def __init__(self, reason: str) -> None:
        HopserveError.__init__(self, f"a part of the graph that this needs cannot be read now: {reason}")


class NotLogged(RequestError):
    """Mutations could not be made durable; none of them was applied."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "not_logged"

    def __init__(self, reason: str) -> None:
        super().__init__(f"nothing was changed, because the log cannot be written: {reason}")


class Unconfirmed(RequestError):
    """Whether mutations are durable is not known."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "unconfirmed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            "whether this was changed is not known: ask for the same under the same `request_id` again;"
            f" {reason}"
        )


class InternalError(RequestError):
    """The server failed; the request may be right."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal"

    def __init__(self, message: str = "the server failed to answer; its log says why") -> None:
        super().__init__(message)


class NonFiniteOutput(InternalError):
    """The model answered NaN or infinity, which no JSON number can say."""

    code = "non_finite_output"

    def __init__(self, node_id: object) -> None:
        super().__init__(f"the model's output for node {_shown(node_id)} is not finite")


class SettingsError(HopserveError):
    """A setting that is missing, misspelt or out of range."""


class GraphError(HopserveError):
    """A graph that cannot be built or opened."""


class GraphInputError(GraphError):
    """Input that is no graph: wrong shapes, dtypes, endpoints or values."""


class GraphUnavailable(GraphError):
    """Where the graph lies cannot be asked, or what is there cannot be used."""


class SnapshotError(GraphError):
    """A snapshot that is missing, truncated, corrupt or of another format."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class LogError(HopserveError):
    """The log of mutations fails."""


class LogUnavailable(LogError):
    """The log's store cannot be reached or written, or has no room."""


class LogUncertain(LogUnavailable):
    """The connection to the log's store broke while it was being written."""


class LogMoved(LogError):
    """Someone else appended first."""

    def __init__(self, expected_seq: int, found_seq: int) -> None:
        super().__init__(f"mutation {expected_seq} was to be the latest, but {found_seq} is")


class LogGap(LogError):
    """Mutations are missing that a reader has yet to read."""

    def __init__(self, after_seq: int, next_seq: int) -> None:
        super().__init__(f"after mutation {after_seq} the log goes on with {next_seq}")


class LogCorrupt(LogError):
    """What a log holds cannot be right."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")


class TableError(HopserveError):
    """A table of precomputed outputs that is missing, truncated, corrupt or of another format."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class LockError(HopserveError):
    """A lock that another process has, or that cannot be made."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class ModelError(HopserveError):
    """An exported model that cannot be made, loaded or run on this graph."""


class NoGradients(HopserveError):
    """A model's file can be run, but not differentiated."""

    def __init__(self) -> None:
        super().__init__("a model of this format cannot be differentiated")


class OutOfMemory(HopserveError):
    """A forward that asked for more memory than its device has."""


def as_value(error: RequestError) -> RequestError:
    """The error without frames, which hold it in turn: a cycle that only a full collection frees."""
    error.__context__ = error.__traceback__ = None
    return error


def in_one_line(error: BaseException) -> str:
    """What another library's error says, without its traces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # TorchScript tells its own story first.
    return lines[-1] if "TorchScript interpreter" in lines[0] else lines[0]


def _shown(node_id: object) -> str:
    text = repr(node_id)
    return text if len(text) <= 80 else f"{text[:77]}..."
