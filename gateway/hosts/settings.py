"""Reads `hosts.yaml`: the hosts, and how requests are spread over them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec

from gateway.errors import GatewayError
from gateway.settings import EntranceSettings, HeaderName, Listen, Port, Retries, read_yaml

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=128)]
_Address = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]+:[0-9]{1,5}$", max_length=255)]


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine with a TorchServe and the gateway in front of it.

    Args:
        name: for people.
        address: of its gateway, `HOST:PORT`; each address of a name with several is a host.
        command: what runs `hopserve` there, such as `[ssh, a, hopserve]`; none: nothing is done there.
    """

    name: _Name
    address: _Address
    command: tuple[str, ...] = ()


class HostKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The key by which the gateways of hosts know the balancer, sent as `X-Api-Key`.

    Args:
        file: with nothing but the key.
        variable: of the environment, where there is no file.
    """

    file: str | None = None
    variable: str = "HOPSERVE_HOST_KEY"


class HostTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Connections to hosts are encrypted, and their certificates checked.

    Args:
        authority: PEM file of who issues the certificates.
        server_name: the DNS name that all of them are for.
    """

    authority: str
    server_name: str


class HostsSettings(EntranceSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All of `hosts.yaml`.

    Args:
        node_header: requests with the same value of it go to the same host; the balancer itself takes the
            first node of the body where there is none.
        max_load: no host is given more than so many times its even share of what is in flight, whatever
            nodes are asked for.
        health_s: how often each host is asked whether it is ready.
        retries: a host that ends takes all that is in flight there with it, so all may be sent again.
    """

    listen: Listen = Listen(port=8100)
    admin_port: Port = 8101
    retries: Retries = Retries(budget=1.0)
    hosts: Annotated[tuple[Host, ...], msgspec.Meta(min_length=1)]
    host_key: HostKey = HostKey()
    tls: HostTls | None = None
    node_header: HeaderName = "x-node-id"
    max_load: Annotated[float, msgspec.Meta(gt=1, le=100)] = 2.0
    health_s: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 1.0


def read_hosts(file: Path) -> HostsSettings:
    """Read a file.

    Raises:
        GatewayError: it cannot be read, or holds what it must not; names the key.
    """
    settings = read_yaml(file, HostsSettings)
    for kind in ("name", "address"):
        found = [getattr(host, kind) for host in settings.hosts]
        for twice in {one for one in found if found.count(one) > 1}:
            raise GatewayError(f"{file}: two hosts have the {kind} {twice}")
    for host in settings.hosts:
        if not 1 <= int(host.address.rpartition(":")[2]) <= 65_535:
            raise GatewayError(f"{file}: {host.address}: there is no such port")
    return settings


def read_host_key(settings: HostKey, folder: Path) -> str | None:
    """The key that hosts ask for; none if none is given.

    Args:
        folder: in which a relative `file` is.

    Raises:
        GatewayError: the file cannot be read, or it is no key. Never shows it.
    """
    if settings.file is None:
        source, key = settings.variable, os.environ.get(settings.variable, "").strip()
    else:
        source = str(folder / settings.file)
        try:
            key = (folder / settings.file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise GatewayError(f"{source}: cannot be read: {error}") from None
    if not key.isascii() or not key.isprintable() or " " in key or (settings.file is not None and not key):
        raise GatewayError(f"{source}: holds no key")
    return key or None
