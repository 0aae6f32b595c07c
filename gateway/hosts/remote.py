"""Runs `hopserve` on a host, by whatever reaches it: ssh, kubectl, or nothing for this machine."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from gateway.errors import GatewayError
from gateway.hosts.settings import Host
from gateway.rollout.manifest import Manifest, Model

_TIMEOUT_S = 600.0  # more than a worker may take to start


class HostError(GatewayError):
    """A host could not do what it was told; names it, and says why in the host's own words."""


class Remote:
    """A host, as someone at its command line has it.

    Every method raises `HostError` where the command fails or does not end.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.name = host.name

    def run(self, *arguments: str, send: Path | None = None) -> str:
        """Run a command of `hopserve`; returns what it prints.

        Args:
            send: a file whose content the command reads.
        """
        if not self.host.command:
            raise HostError(f"{self.name}: no command is given that runs hopserve there")
        try:
            with (send or Path("/dev/null")).open("rb") as content:
                done = subprocess.run(
                    [*self.host.command, *self._quoted(arguments)],
                    stdin=content,
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
        except OSError as error:
            raise HostError(f"{self.name}: {self.host.command[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise HostError(
                f"{self.name}: `hopserve {arguments[0]}` takes longer than {_TIMEOUT_S:.0f} s"
            ) from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = said[-1].removeprefix("hopserve: ") if said else f"exit status {done.returncode}"
            raise HostError(f"{self.name}: {reason}")
        return done.stdout

    def models(self) -> dict[str, Model]:
        """The models of the host's gateway, with their versions and rollouts."""
        text = self.run("rollout", "status", "--json")
        try:
            content = msgspec.json.decode(text, type=dict[str, Any])
            content.pop("controller", None)
            return msgspec.convert(content, Manifest).models
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise HostError(f"{self.name}: says what is not understood: {error}") from None

    def _quoted(self, arguments: tuple[str, ...]) -> list[str]:
        """Ssh hands what it gets to a shell, which would take it apart again."""
        is_ssh = Path(self.host.command[0]).name == "ssh"
        return [shlex.quote(argument) for argument in arguments] if is_ssh else list(arguments)
