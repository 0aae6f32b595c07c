"""Errors of dealing with a server, below the one tree of `handler.errors`."""

from __future__ import annotations

from handler.errors import HopserveError


class UpstreamError(HopserveError):
    """TorchServe cannot be started, reached or stopped, or refuses what it is asked."""


class GatewayError(HopserveError):
    """The gateway cannot be configured, started, reached or stopped."""


class RolloutError(HopserveError):
    """A rollout cannot do what it is asked, or its state cannot be read or written."""


class NoAnswer(UpstreamError):
    """TorchServe did not answer; whether it did what it was asked is not known."""


class Refused(UpstreamError):
    """TorchServe answered with an error.

    Args:
        status: HTTP status.
        message: its own words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"TorchServe answered {status}: {message}")
        self.status = status
