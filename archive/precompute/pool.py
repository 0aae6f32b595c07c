"""Computes chunks in this process, or in several, which end when this one does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from archive.precompute.compute import ChunkComputer, Task
from handler.errors import HopserveError, ModelError

_QUEUED_PER_PROCESS = 2

#: Computes chunks of a stage and a shard; gives the nodes of each that is done.
Compute = Callable[[int, int, Sequence[tuple[int, int]]], Iterator[int]]


@contextmanager
def computing(task: Task, num_processes: int) -> Iterator[Compute]:
    """What computes chunks of a stage, in this process or in others; gives the nodes of each that is done."""
    if num_processes == 1:
        computer = ChunkComputer(task)
        yield lambda stage, shard, chunks: (computer.run(stage, shard, chunk) for chunk in chunks)
        return
    with ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), initializer=_start, initargs=(task,)
    ) as pool:
        try:
            yield lambda stage, shard, chunks: _in_pool(pool, num_processes, stage, shard, chunks)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # waits: processes that begin still read the model
            raise


def _in_pool(
    pool: ProcessPoolExecutor, num_processes: int, stage: int, shard: int, chunks: Sequence[tuple[int, int]]
) -> Iterator[int]:
    waiting: set[Future[int]] = set()
    try:
        for chunk in chunks:
            with _interrupts_held():  # the first submission starts the processes
                waiting.add(pool.submit(_run_chunk, stage, shard, chunk))
            if len(waiting) >= _QUEUED_PER_PROCESS * num_processes:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        for each in waiting:
            yield each.result()
    except BrokenProcessPool:
        raise ModelError(
            "a process that computed was killed, or could not begin: is there memory for so many?"
        ) from None


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that are started meanwhile never see Ctrl-C: this one stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_computer: ChunkComputer | None = None


def _start(task: Task) -> None:
    global _computer  # noqa: PLW0603 - one for each process of the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _computer = ChunkComputer(task)


def _end_with_parent() -> None:
    """A parent that is killed can stop nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_chunk(stage: int, shard: int, chunk: tuple[int, int]) -> int:
    if _computer is None:
        raise AssertionError("the pool starts its processes by `_start`")
    try:
        return _computer.run(stage, shard, chunk)
    except HopserveError as error:
        # Errors that are built from values do not come through a pipe as what they are.
        raise HopserveError(str(error)) from None
