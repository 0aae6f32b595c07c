"""Of processes that start together one compiles, and none is kept from starting."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from handler.graph.compiling import one_goes_first

WAIT_S = 60.0
STARTS = """
from handler.graph.compiling import one_goes_first
from handler.graph.hashing import mix64
import numpy
print("ready", flush=True)
input()
with one_goes_first():
    mix64(numpy.uint64(1))
print(sum(mix64.stats.cache_misses.values()))
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_two_need_is_compiled_once() -> None:
    command = [sys.executable, "-c", STARTS]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    processes = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=WAIT_S)[0] for process in processes]
    assert sorted(map(int, answers)) == [0, 1]


def test_those_that_wait_enter_together_once_the_first_has_left() -> None:
    together = threading.Barrier(3)
    entered: list[int] = []

    def enter(number: int) -> None:
        with one_goes_first(WAIT_S):
            entered.append(number)
            together.wait(WAIT_S / 4)  # less than they are patient

    waiting = [threading.Thread(target=enter, args=(number,)) for number in range(3)]
    with one_goes_first():
        for thread in waiting:
            thread.start()
        waiting[0].join(0.3)
        assert entered == []
    for thread in waiting:
        thread.join(WAIT_S)
    assert sorted(entered) == [0, 1, 2]
    assert not together.broken


def test_one_that_failed_keeps_nobody_out() -> None:
    with pytest.raises(ValueError, match="broken"), one_goes_first():
        raise ValueError("broken")
    left = threading.Event()

    def enter() -> None:
        with one_goes_first(WAIT_S):
            left.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    assert left.wait(5)


def test_nobody_waits_longer_than_it_is_patient() -> None:
    with one_goes_first(), one_goes_first(patience_s=0.1):
        pass


def test_without_a_lock_everybody_enters(cache: Path) -> None:
    cache.write_text("no folder")
    with one_goes_first(), one_goes_first():
        pass
