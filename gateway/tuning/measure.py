"""Measures an archive under candidate settings, one after the other, in a TorchServe of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from gateway.errors import UpstreamError
from gateway.tuning.archives import Original, write_candidate
from gateway.tuning.candidates import Candidate
from gateway.tuning.load import Answered, Sent, send_all, send_at_rate
from gateway.tuning.measured import Latency, Measured, is_answered, latency_of
from gateway.tuning.traffic import Traffic
from gateway.upstream.client import Client
from gateway.upstream.loading import load
from gateway.upstream.process import warm_up
from gateway.upstream.properties import ServerProperties
from gateway.upstream.tokens import Tokens
from handler.keeping import embeddings_folder

_NEVER = float("inf")
# What is far beyond what was answered at most need not be tried: more and more requests would wait.
_HOPELESS = 2.0
_LONGEST_WARM_UP_S = 2.0
# Java compiles what it runs often: without more of it the first candidate would seem to be half as fast.
_FIRST_WARM_UPS = 3
_READY_TIMEOUT_S = 330.0
_POLL_S = 0.1


@dataclass(frozen=True)
class Trial:
    """How each candidate is tried.

    Args:
        rates: requests a second at which latency is measured; none among them: as many as are answered.
        connections: of the clients that ask as fast as they can.
        seconds: of each part.
    """

    traffic: Traffic
    rates: tuple[float | None, ...] = (None,)
    connections: int = 64
    seconds: float = 5.0


class Bench:
    """A server on which candidates are tried.

    Args:
        properties: of a running server that nobody else uses.
        original: the archive; it is only read.
    """

    def __init__(self, properties: ServerProperties, original: Original, trial: Trial) -> None:
        self._properties, self._original, self._trial = properties, original, trial
        self._answers = properties.file.parent / "answers"
        self._num_written = 0
        self._is_filled = trial.traffic.live
        self._is_warm = False
        _link_tables(original, self._answers)

    def measure(self, candidate: Candidate) -> Measured:
        """Load the archive with these settings, ask it, and take it away again.

        Raises:
            UpstreamError: it cannot be loaded, or answers nothing well; says why.
        """
        trial = self._trial
        with self._serving(candidate) as url:
            self._warm_up(url)
            cpu_s, started = time.process_time(), time.monotonic()
            answers = self._ask_as_fast_as_possible(url, trial.seconds)
            seconds, cpu_s = time.monotonic() - started, time.process_time() - cpu_s
            max_per_s = sum(map(is_answered, answers)) / seconds
            latencies, num_failed = [], len(answers) - sum(map(is_answered, answers))
            for rate in trial.rates:
                if rate is None:
                    latencies.append(latency_of(answers, None))
                elif rate > _HOPELESS * max_per_s:
                    latencies.append(Latency(rate, _NEVER, _NEVER, _NEVER))
                else:
                    at_rate = self._ask_at(url, rate)
                    latencies.append(latency_of(at_rate, rate))
                    num_failed += len(at_rate) - sum(map(is_answered, at_rate))
        load_share = cpu_s / seconds / len(os.sched_getaffinity(0))
        return Measured(candidate, max_per_s, tuple(latencies), load_share, num_failed)

    @contextmanager
    def _serving(self, candidate: Candidate) -> Iterator[str]:
        self._num_written += 1
        archive = self._properties.model_store / f"candidate-{self._num_written}.mar"
        write_candidate(self._original, candidate, archive, self._answers)
        name, version = self._original.stored.model, self._original.stored.version
        with Client(self._properties) as client:
            try:
                load(client, self._properties, archive.name)
                _wait_for_workers(client, name, version, candidate.num_workers)
                warm_up(client, [client.version(name, version)])
                yield f"{self._properties.inference_url}/predictions/{name}/{version}"
            except UpstreamError:
                with suppress(UpstreamError):  # what went wrong first is what is told
                    client.unregister(name, version)
                raise
            else:  # after an interrupt the whole server goes
                client.unregister(name, version)
            finally:
                archive.unlink(missing_ok=True)

    def _warm_up(self, url: str) -> None:
        trial = self._trial
        if not self._is_filled:  # what is stored by the first of these is there for all candidates
            self._send_all(url, trial.traffic.several(len(trial.traffic.bodies)))
            self._is_filled = True
        seconds = min(trial.seconds, _LONGEST_WARM_UP_S)
        answers = self._ask_as_fast_as_possible(url, seconds if self._is_warm else _FIRST_WARM_UPS * seconds)
        self._is_warm = True
        if not any(answer.status == HTTPStatus.OK for answer in answers):
            said = answers[0].body.decode(errors="replace") if answers else ""
            raise UpstreamError(
                f"{self._original.path}: no request was answered well; the first one"
                f" with status {answers[0].status if answers else 0}: {' '.join(said.split()):.300}"
            )

    def _ask_as_fast_as_possible(self, url: str, seconds: float) -> list[Answered]:
        return self._send_all(url, self._trial.traffic.during(seconds))

    def _send_all(self, url: str, requests: Iterator[Sent]) -> list[Answered]:
        return send_all(url, self._key(), requests, self._trial.connections)

    def _ask_at(self, url: str, rate: float) -> list[Answered]:
        requests = self._trial.traffic.several(max(1, round(rate * self._trial.seconds)))
        return send_at_rate(url, self._key(), requests, rate)

    def _key(self) -> dict[str, str]:
        return Tokens(self._properties).headers("inference")


def _link_tables(original: Original, answers: Path) -> None:
    """Precomputed answers are read where they are; what is kept beside them goes elsewhere."""
    name, version = original.stored.model, original.stored.version
    tables = embeddings_folder(original.settings) / name / version
    (answers / name).mkdir(parents=True)
    if tables.is_dir():
        (answers / name / version).symlink_to(tables.resolve())


def _wait_for_workers(client: Client, name: str, version: str, wanted: int) -> None:
    """TorchServe may answer when the first worker is ready."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while (ready := client.version(name, version).num_ready) < wanted:
        if time.monotonic() > deadline:
            raise UpstreamError(f"{ready} of {wanted} workers are ready after {_READY_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
