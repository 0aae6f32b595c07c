"""The keys that TorchServe asks for, read from its key file and renewed when they run out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

import httpx
import msgspec

from gateway.errors import NoAnswer, UpstreamError
from gateway.upstream.properties import ServerProperties

Purpose = Literal["inference", "management"]
_RENEWED_BEFORE_S = 60.0


class _Key(msgspec.Struct, frozen=True):
    key: str
    expires_at: datetime = msgspec.field(name="expiration time")


class _ApiKey(msgspec.Struct, frozen=True):
    key: str


class _KeyFile(msgspec.Struct, frozen=True):
    inference: _Key
    management: _Key
    api: _ApiKey = msgspec.field(name="API")


class Tokens:
    """Valid keys of one server.

    Args:
        renewed_before_s: a key that is valid for less than this is renewed.
    """

    def __init__(self, properties: ServerProperties, renewed_before_s: float = _RENEWED_BEFORE_S) -> None:
        self._properties = properties
        self._renewed_before = timedelta(seconds=renewed_before_s)

    def get(self, purpose: Purpose, *, renew: bool = False) -> str:
        """A key that is valid for a while, which is a minute unless told otherwise.

        A key that is about to run out is renewed, and so is any with `renew`; TorchServe forgets the old
        one at once, for everyone.

        Raises:
            UpstreamError: there is no key file, or the server cannot be asked for a new key.
        """
        keys = self._read()
        key = getattr(keys, purpose)
        if not renew and key.expires_at - datetime.now(UTC) > self._renewed_before:
            return str(key.key)
        self._renew(purpose, keys.api.key)
        return str(getattr(self._read(), purpose).key)

    def headers(self, purpose: Purpose) -> dict[str, str]:
        """The header that a request needs; none where the server asks for no key."""
        if not self._properties.token_auth:
            return {}
        return {"Authorization": f"Bearer {self.get(purpose)}"}

    def _read(self) -> _KeyFile:
        path = self._properties.key_file
        try:
            return msgspec.json.decode(path.read_bytes(), type=_KeyFile)
        except FileNotFoundError:
            raise UpstreamError(f"{path}: missing; TorchServe writes it when it starts") from None
        except (OSError, msgspec.DecodeError) as error:
            raise UpstreamError(f"{path}: cannot be read: {error}") from None

    def _renew(self, purpose: Purpose, api_key: str) -> None:
        url = f"{self._properties.management_url}/token"
        headers = {"Authorization": f"Bearer {api_key}"}
        try:
            answer = httpx.get(url, params={"type": purpose}, headers=headers)
        except httpx.HTTPError as error:
            raise NoAnswer(
                f"the {purpose} key ran out and {url} cannot be asked for a new one: {error}"
            ) from None
        if answer.is_error:
            raise UpstreamError(
                f"TorchServe gives no new {purpose} key: {answer.status_code} {answer.text.strip()}"
            )
