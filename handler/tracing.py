"""Tells of traced requests how long each stage of their batch took, a line for each in the worker's log.

A request is traced if its `traceparent` says so (W3C Trace Context, the flag `sampled`), whoever set it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

TRACEPARENT = "traceparent"
REQUEST_ID = "x-request-id"
_LENGTH = 55  # of version 00: 2 + 1 + 32 + 1 + 16 + 1 + 2
_MAX_ID_LENGTH = 128
_log = logging.getLogger(__name__)


class Trace(msgspec.Struct, frozen=True):
    """A traced request.

    Args:
        position: in its batch.
    """

    position: int
    request_id: str
    traceparent: str


def trace_of(position: int, sent: Mapping[str, Any]) -> Trace | None:
    """A request's trace; none if nobody traces it.

    Args:
        sent: headers, by names in lower case.
    """
    traceparent = str(sent.get(TRACEPARENT, ""))
    if len(traceparent) != _LENGTH or traceparent[-1] not in "13579bdf":
        return None
    return Trace(position, str(sent.get(REQUEST_ID, ""))[:_MAX_ID_LENGTH], traceparent)


def tell(
    trace: Trace, model: str, version: str, status: int, batch_size: int, stages_us: Mapping[str, float]
) -> None:
    """Log one traced request.

    Args:
        batch_size: requests that were answered together.
        stages_us: what each stage took for all of them.
    """
    line = {
        "request_id": trace.request_id,
        "traceparent": trace.traceparent,
        "model": model,
        "version": version,
        "status": status,
        "batch_size": batch_size,
        "stages_us": {stage: round(amount_us) for stage, amount_us in stages_us.items()},
    }
    _log.info("hopserve trace %s", msgspec.json.encode(line).decode())
