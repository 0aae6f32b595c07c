"""What `hosts.yaml` may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import GatewayError
from gateway.hosts.settings import HostKey, read_host_key, read_hosts

_ONE = "hosts: [{name: a, address: '10.0.0.1:8000'}]\n"


def _read(folder: Path, text: str) -> object:
    (folder / "hosts.yaml").write_text(text)
    return read_hosts(folder / "hosts.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing required field `hosts`"),
        ("hosts: []", "length >= 1"),
        ("hosts: [{name: a}]", "missing required field `address`"),
        ("hosts: [{name: a, address: nowhere}]", "matching regex"),
        ("hosts: [{name: a, address: 'host:70000'}]", "host:70000: there is no such port"),
        ("hosts: [{name: a, address: 'x:1'}, {name: a, address: 'y:1'}]", "two hosts have the name a"),
        ("hosts: [{name: a, address: 'x:1'}, {name: b, address: 'x:1'}]", "two hosts have the address x:1"),
        ("hosts: [{name: a, address: 'x:1', command: ssh}]", "Expected `array`"),
        (_ONE + "max_load: 1", "> 1"),
        (_ONE + "health_s: 0", ">= 0.1"),
        (_ONE + "node_header: 'X Y'", "matching regex"),
        (_ONE + "sticky_header: x", "unknown field `sticky_header`"),
        (_ONE + "tls: {authority: x}", "missing required field `server_name`"),
        (": [", "hosts.yaml"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(GatewayError) as caught:
        _read(tmp_path, text)
    assert said in str(caught.value)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="cannot be read"):
        read_hosts(tmp_path / "hosts.yaml")


def test_a_key_comes_from_a_file_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_host_key(HostKey(), tmp_path) is None
    monkeypatch.setenv("HOPSERVE_HOST_KEY", "from-the-environment")
    assert read_host_key(HostKey(), tmp_path) == "from-the-environment"
    (tmp_path / "key").write_text("from-a-file\n")
    assert read_host_key(HostKey(file="key"), tmp_path) == "from-a-file"
    for wrong in ("", "two words", "größe"):
        (tmp_path / "key").write_text(wrong)
        with pytest.raises(GatewayError, match="holds no key"):
            read_host_key(HostKey(file="key"), tmp_path)
    with pytest.raises(GatewayError, match="cannot be read"):
        read_host_key(HostKey(file="none"), tmp_path)
