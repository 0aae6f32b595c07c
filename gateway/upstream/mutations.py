"""Sends mutations to a live graph until they have arrived."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_delay,
    stop_when_event_set,
    wait_exponential_jitter,
)
from tenacity.nap import sleep_using_event

from gateway.errors import NoAnswer, Refused, UpstreamError
from gateway.upstream.client import Client

GRAPH_MODEL = "graph"
# A gateway in front adds 429, 502 and 504.
_PASSING = {429, 500, 502, 503, 504, 507}
_OUTDATED_KEY = "Token Authorization failed"
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_Kind = TypeVar("_Kind")

ENVELOPE_BYTES = 256  # more than `Mutations.send` adds to mutations


class EdgeShape(msgspec.Struct, frozen=True):
    """What is known of an edge; `attr_dim` is 0 without features."""

    weight: bool
    time: bool
    attr_dim: int


class LogEnds(msgspec.Struct, frozen=True):
    """The log of mutations; without `last_seq` it cannot be read now."""

    last_seq: int = 0


class LiveGraph(msgspec.Struct, frozen=True):
    """A live graph, as a worker describes it that has seen mutations up to `seq`."""

    seq: int
    id_type: Literal["int", "str"]
    feature_dim: int | None
    edge: EdgeShape
    log: LogEnds = LogEnds()

    @property
    def last_seq(self) -> int:
        """The last mutation that is known of."""
        return max(self.seq, self.log.last_seq)


class Applied(msgspec.Struct, frozen=True):
    """What became of mutations.

    Args:
        first_seq, last_seq: their numbers.
        repeated: whether they were there already.
    """

    first_seq: int
    last_seq: int
    repeated: bool


class Mutations:
    """Mutations for the graph of one server; its methods may be called in several threads.

    Every method tries again while TorchServe does not answer or says that it cannot now, and raises that as
    `UpstreamError` in the end, and other refusals as `Refused` at once.

    Args:
        client: of the server.
        retry_for_s: for how long to try again.
        on_retry: is told when a request has failed for the first time.
        model: as which the graph is served.
    """

    def __init__(
        self,
        client: Client,
        retry_for_s: float,
        on_retry: Callable[[str], object],
        model: str = GRAPH_MODEL,
    ) -> None:
        self._client = client
        self._model = model
        self._retry_for_s = retry_for_s
        self._on_retry = on_retry
        self._stopped = threading.Event()

    def describe(self) -> LiveGraph:
        """The graph."""
        return self._ask(b'{"info":true}', LiveGraph)

    def send(self, content: bytes, request_id: str, *, create_missing: bool) -> Applied:
        """Apply mutations, unless they were under this id before.

        Args:
            content: a JSON object with at least one list of mutations.
            request_id: of letters, digits, dots and dashes, at most 128.
            create_missing: whether edges make the nodes that they name.
        """
        options = b',"create_missing":true' if create_missing else b""
        body = b'%b%b,"request_id":"%b"}' % (content[:-1], options, request_id.encode())
        return self._ask(body, Applied)

    def stop(self) -> None:
        """Try nothing again from now on."""
        self._stopped.set()

    def _ask(self, body: bytes, kind: type[_Kind]) -> _Kind:
        trying = Retrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_delay(self._retry_for_s) | stop_when_event_set(self._stopped),
            wait=wait_exponential_jitter(
                multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S, jitter=_FIRST_PAUSE_S
            ),
            sleep=sleep_using_event(self._stopped),
            before_sleep=self._tell,
            reraise=True,
        )
        try:
            answer = trying(self._client.predict_encoded, self._model, body)
        except UpstreamError as error:
            if not _may_pass(error):
                raise
            raise UpstreamError(f"{error} (tried for {self._retry_for_s:g} s)") from None
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.DecodeError as error:
            raise UpstreamError(f"the answer of the model {self._model} is not understood: {error}") from None

    def _tell(self, state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            self._on_retry(f"{state.outcome.exception()}; trying again for up to {self._retry_for_s:g} s")


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, Refused):
        # Whoever renews a key ends the one that we have just read.
        return error.status in _PASSING or _OUTDATED_KEY in error.message
    return isinstance(error, NoAnswer)
