"""Asks TorchServe to explain a node, for the page."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Any

import aiohttp
import msgspec

from gateway.errors import UpstreamError
from gateway.upstream.properties import ServerProperties
from gateway.upstream.tokens import Tokens

_TOP = 1_000
_TIMEOUT_S = 60.0
_MAX_IN_FLIGHT = 4
_MAX_ANSWER_BYTES = 16_000_000
_INT64 = range(-(2**63), 2**63)
_JSON = {"Content-Type": "application/json"}

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=128)]


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the page asks.

    Args:
        version: none for the default one.
        node_id: as it was typed, be it a number or not.
    """

    model: _Name
    version: _Name | None = None
    node_id: Annotated[str, msgspec.Meta(min_length=1, max_length=1_000)]


class Answer(msgspec.Struct, frozen=True):
    """What the page is answered: an explanation, or `{"error": {"code": ..., "message": ...}}`."""

    status: int
    content: Any


class Looker:
    """Asks for explanations, a few at a time."""

    def __init__(self, properties: ServerProperties) -> None:
        self._properties = properties
        self._tokens = Tokens(properties)
        self._in_flight = 0

    async def look(self, session: aiohttp.ClientSession, asked: Look) -> Answer:
        """The explanation of a node; what reads as an integer is tried as one before it is as a text."""
        if self._in_flight >= _MAX_IN_FLIGHT:
            return failed(HTTPStatus.TOO_MANY_REQUESTS, "busy", "other nodes are being looked up; try again")
        self._in_flight += 1
        try:
            number = _integer(asked.node_id)
            if number is None:
                return await self._ask(session, asked, asked.node_id)
            answer = await self._ask(session, asked, number)
            if answer.status != HTTPStatus.BAD_REQUEST:
                return answer
            as_text = await self._ask(session, asked, asked.node_id)
            # Where neither will do, the first answer says what is wrong.
            return answer if as_text.status == HTTPStatus.BAD_REQUEST else as_text
        finally:
            self._in_flight -= 1

    async def _ask(self, session: aiohttp.ClientSession, asked: Look, node_id: int | str) -> Answer:
        path = f"/explanations/{asked.model}" + (f"/{asked.version}" if asked.version else "")
        try:
            key = await asyncio.to_thread(self._tokens.headers, "inference")
            async with session.post(
                self._properties.inference_url + path,
                data=msgspec.json.encode({"node_id": node_id, "top": _TOP}),
                headers=_JSON | key,
                timeout=aiohttp.ClientTimeout(_TIMEOUT_S),
                allow_redirects=False,
            ) as answer:
                return _read(answer.status, await _bounded(answer))
        except TimeoutError:
            message = f"TorchServe did not answer within {_TIMEOUT_S:.0f} s"
            return failed(HTTPStatus.GATEWAY_TIMEOUT, "timeout", message)
        except (aiohttp.ClientError, UpstreamError) as error:
            return failed(HTTPStatus.BAD_GATEWAY, "unavailable", f"TorchServe does not answer: {error}")


def failed(status: int, code: str, message: str) -> Answer:
    """An error, in the form that all of Hopserve's have."""
    return Answer(status, {"error": {"code": code, "message": message}})


def _integer(text: str) -> int | None:
    """The integer that a text is, if it would be written in no other way."""
    stripped = text.strip()
    try:
        number = int(stripped)
    except ValueError:
        return None
    return number if str(number) == stripped and number in _INT64 else None


async def _bounded(answer: aiohttp.ClientResponse) -> bytes | None:
    """The body; none if it is too long."""
    read = bytearray()
    async for block in answer.content.iter_chunked(65_536):
        read += block
        if len(read) > _MAX_ANSWER_BYTES:
            return None
    return bytes(read)


def _read(status: int, body: bytes | None) -> Answer:
    try:
        content = msgspec.json.decode(body) if body is not None else None
    except msgspec.DecodeError:
        content = None
    if status == HTTPStatus.OK:
        if isinstance(content, dict) and "nodes" in content and "edges" in content:
            return Answer(status, content)
        message = "TorchServe's answer is no explanation: it is too long, or not of a Hopserve model"
        return failed(HTTPStatus.BAD_GATEWAY, "no_explanation", message)
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        return Answer(status, content)
    # TorchServe's own errors have another form.
    said = content.get("message") if isinstance(content, dict) else None
    message = str(said) if said else f"TorchServe answered {status}"
    return failed(
        status if status >= HTTPStatus.BAD_REQUEST else HTTPStatus.BAD_GATEWAY, "torchserve", message
    )
