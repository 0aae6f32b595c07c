"""How long work tells what it does: in words, and as bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], object]


class Progress(Protocol):
    """Whoever watches."""

    def say(self, step: str) -> None:
        """A step begins."""
        ...

    def bar(self, step: str, total: int, unit: str) -> AbstractContextManager[Advance]:
        """A step of `total` units begins; the function given tells how many more are done."""
        ...


class _Silent:
    def say(self, step: str) -> None:
        pass

    @contextmanager
    def bar(self, step: str, total: int, unit: str) -> Iterator[Advance]:
        yield lambda done: None


SILENT: Progress = _Silent()
