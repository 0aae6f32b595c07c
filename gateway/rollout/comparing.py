"""Asks two versions the same, and keeps what their answers say about how alike they are."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.judging.decision import Comparison
from gateway.judging.policy import Policy, similarity_confidence
from gateway.judging.similarity import similarity
from gateway.upstream.properties import ServerProperties
from gateway.upstream.tokens import Tokens
from handler.errors import HopserveError

_MAX_NODES = 2_048
_FEWEST = 20  # of which a similarity is told
_GROWTH = 1.5  # the similarity is computed when there are so many times as many nodes as the last time
_TIMEOUT_S = 10.0
_PACE_S = 0.02
_OK = 200
_SERVER_ERROR = 500


@dataclass(frozen=True)
class Answer:
    """What a version says of one node.

    Args:
        embedding: float32 [dim]; none if it gives none.
        failed: whether it gave an error that is its own fault, or numbers that are none.
    """

    node: str
    embedding: NDArray[np.float32] | None = None
    label: str | None = None
    failed: bool = False


class Comparisons:
    """The answers of two versions about the same nodes, each node once; safe to use from several threads.

    Args:
        share: see `decide`.
    """

    def __init__(self, policy: Policy, share: float) -> None:
        self._policy = policy
        self._share = share
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._pairs: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        self._failed = self._labels_compared = self._labels_differ = 0
        self._look = 0
        self._num_looked_at = 0
        self._similarity: tuple[float, float] | None = None

    def add(self, baseline: Answer, candidate: Answer) -> None:
        """Count one node more; one that the baseline cannot answer either says nothing."""
        with self._lock:
            if baseline.failed or baseline.node in self._seen or len(self._seen) >= _MAX_NODES:
                return
            self._seen.add(baseline.node)
            if candidate.failed:
                self._failed += 1
                return
            if baseline.label is not None and candidate.label is not None:
                self._labels_compared += 1
                self._labels_differ += baseline.label != candidate.label
            if baseline.embedding is not None and candidate.embedding is not None:
                self._pairs.append((baseline.embedding, candidate.embedding))

    @property
    def is_full(self) -> bool:
        """Whether more nodes would say nothing more."""
        return len(self._seen) >= _MAX_NODES

    def summary(self) -> Comparison:
        """All that is known by now."""
        with self._lock:
            pairs = list(self._pairs) if self._is_due() else None
        if pairs is not None:
            self._look_again(pairs)
        with self._lock:
            found = self._similarity or (None, None)
            return Comparison(
                compared=len(self._seen),
                failed=self._failed,
                labels_compared=self._labels_compared,
                labels_differ=self._labels_differ,
                similarity=found[0],
                similarity_upper=found[1],
            )

    def _is_due(self) -> bool:
        needed = max(_FEWEST, self._policy.min_compared, math.ceil(self._num_looked_at * _GROWTH))
        return len(self._pairs) >= needed

    def _look_again(self, pairs: list[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> None:
        self._look += 1
        self._num_looked_at = len(pairs)
        confidence = similarity_confidence(self._policy, self._look, self._share)
        first, second = (_stacked([pair[side] for pair in pairs]) for side in (0, 1))
        if first is not None and second is not None:
            found = similarity(first, second, confidence)
            with self._lock:
                self._similarity = found


def _stacked(rows: list[NDArray[np.float32]]) -> NDArray[np.float32] | None:
    return np.stack(rows) if len({len(row) for row in rows}) == 1 else None


@dataclass(frozen=True)
class Comparing:
    """What is being compared for a model."""

    baseline: str
    candidate: str
    comparisons: Comparisons


class Comparer:
    """Asks both versions of a rollout what clients ask; only for some requests, and never faster than they
    answer.

    Use it within one event loop.
    """

    def __init__(self, properties: ServerProperties) -> None:
        self._properties = properties
        self._tokens = Tokens(properties)
        #: By model; replaced as a whole.
        self.active: Mapping[str, Comparing] = {}
        self._one_at_a_time = asyncio.Lock()

    async def compare(self, session: aiohttp.ClientSession, model: str, body: bytes) -> None:
        """Ask both versions of a model the same request."""
        comparing = self.active.get(model)
        asked = (
            _with_embeddings(body) if comparing is not None and not comparing.comparisons.is_full else None
        )
        if comparing is None or asked is None:
            await asyncio.sleep(_PACE_S)
            return
        async with self._one_at_a_time:
            started = time.monotonic()
            baseline, candidate = await asyncio.gather(
                *(
                    self._ask(session, model, version, asked)
                    for version in (comparing.baseline, comparing.candidate)
                )
            )
            for first, second in paired(baseline, candidate):
                comparing.comparisons.add(first, second)
            await asyncio.sleep(max(0.0, _PACE_S - (time.monotonic() - started)))

    async def _ask(
        self, session: aiohttp.ClientSession, model: str, version: str, body: bytes
    ) -> tuple[int, bytes]:
        url = f"{self._properties.inference_url}/predictions/{model}/{version}"
        try:
            sent = {"content-type": "application/json", **self._tokens.headers("inference")}
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
            async with session.post(url, data=body, headers=sent, timeout=timeout) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, HopserveError):
            return 0, b""


def paired(baseline: tuple[int, bytes], candidate: tuple[int, bytes]) -> Iterator[tuple[Answer, Answer]]:
    """What two versions say about the same nodes, from their answers to the same request.

    Args:
        baseline, candidate: status, 0 where no answer came, and body.
    """
    first, second = _rows(*baseline), _rows(*candidate)
    if first is None or 0 in (baseline[0], candidate[0]):
        return
    if second is None:
        # One failure, however many nodes were asked for: they did not fail independently.
        first, second = first[:1], [{"error": {}}]
    for one, other in zip(first, second, strict=False):
        node = str(one.get("node_id", one.get("node")))
        yield _answer(node, one), _answer(node, other)


def _with_embeddings(body: bytes) -> bytes | None:
    """The same request, answered with embeddings and labels; none if it does not ask about nodes."""
    try:
        request = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    if not isinstance(request, dict) or not {"node_id", "node_ids", "instances"} & request.keys():
        return None
    kept = {key: value for key, value in request.items() if key not in {"return", "top_k", "metric"}}
    return msgspec.json.encode(kept)


def _rows(status: int, body: bytes) -> list[dict[str, Any]] | None:
    """The rows of an answer; none if the version failed as a whole."""
    if status >= _SERVER_ERROR:
        return None
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    if not isinstance(content, dict) or (status != _OK and "error" not in content):
        return None  # TorchServe's own words
    rows = content.get("predictions", [content])
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else None


# Errors of rows that are the version's own fault; others are the client's, and both versions have them.
_FAILURES = frozenset({None, "internal", "non_finite_output", "out_of_memory", "not_ready"})


def _answer(node: str, row: dict[str, Any]) -> Answer:
    if "error" in row:
        error = row["error"]
        code = error.get("code") if isinstance(error, dict) else None
        return Answer(node, failed=code in _FAILURES)
    embedding = None
    if isinstance(row.get("embedding"), list):
        numbers = np.asarray(row["embedding"], dtype=np.float64)
        if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
            return Answer(node, failed=True)
        embedding = numbers.astype(np.float32)
    label = row.get("label")
    return Answer(node, embedding, None if label is None else str(label))
