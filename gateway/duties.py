"""What a process does again and again, each thing in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from handler.errors import HopserveError

_log = logging.getLogger(__name__)
Duty = Callable[[], object]


class Duties:
    """Duties that go on until `end`; what fails is said once, and tried again."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._problems: dict[str, str] = {}

    @property
    def is_ended(self) -> bool:
        """Whether there is nothing to do any more."""
        return self._ended.is_set()

    @property
    def problems(self) -> list[str]:
        """What fails now, in words."""
        return sorted(self._problems.values())

    def begin(self, *duties: tuple[Duty, float]) -> None:
        """Begin with these, each after so many seconds, and then again and again."""
        for duty, every_s in duties:
            threading.Thread(target=self._repeat, args=(duty, every_s), daemon=True).start()

    def end(self) -> None:
        """Begin nothing any more; what is at work is not waited for."""
        self._ended.set()

    def _repeat(self, duty: Duty, every_s: float) -> None:
        name = getattr(duty, "__qualname__", repr(duty))
        while not self._ended.wait(every_s):
            try:
                duty()
            except HopserveError as error:
                if self._problems.get(name) != str(error):
                    _log.error("%s", error)
                self._problems[name] = str(error)
            except Exception:  # noqa: BLE001 - the next time may go well
                _log.exception("an error of the gateway itself")
            else:
                if self._problems.pop(name, None) is not None:
                    _log.warning("that is over")
