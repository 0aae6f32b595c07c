"""Calls in the background are answered in the order in which they were made."""

from __future__ import annotations

import threading
import time

import pytest

from gateway.upstream.in_flight import InFlight


def _slowest_first(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    time.sleep(0.2 - number / 20)
    return number * number


def test_the_oldest_comes_first() -> None:
    calls = InFlight(_slowest_first)
    for number in range(4):
        calls.begin(number)
    assert list(calls.finish(2)) == [(0, 0), (1, 1)]
    assert list(calls.finish()) == [(2, 4), (3, 9)]


def test_what_a_call_raises_is_raised_in_its_turn() -> None:
    calls = InFlight(_slowest_first)
    for number in (1, -1, 2):
        calls.begin(number)
    answers = calls.finish()
    assert next(answers) == (1, 1)
    with pytest.raises(ValueError, match="-1"):
        next(answers)


def test_settling_awaits_all_but_not_for_ever() -> None:
    never = threading.Event()
    calls = InFlight(lambda number: never.wait() if number == 3 else _slowest_first(number))
    for number in (1, 2, 3, 2):
        calls.begin(number)
    assert list(calls.settle(0.5)) == [(1, 1), (2, 4)]
    never.set()
    for number in (1, -1, 2):
        calls.begin(number)
    assert list(calls.settle(5)) == [(1, 1)]
