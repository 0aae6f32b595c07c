"""Commands that are run on hosts."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gateway.errors import UpstreamError
from gateway.hosts.remote import HostError, Remote
from gateway.hosts.settings import Host
from gateway.upstream.store import put_archive

_SAYS = "import sys; print(sys.argv[1:], sys.stdin.read())"
_FAILS = "import sys; print('hopserve: no such version', file=sys.stderr); sys.exit(1)"
_STATUS = 'print(\'{"models": {"m": {"history": 7}}}\')'


def _remote(*command: str) -> Remote:
    return Remote(Host(name="a", address="x:1", command=command))


def test_arguments_and_a_file_come_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    remote = _remote(sys.executable, "-c", _SAYS)
    assert remote.run("put", "a b", "$HOME", send=tmp_path / "file") == "['put', 'a b', '$HOME'] content\n"
    assert remote.run("x") == "['x'] \n"


def test_a_shell_on_the_other_side_takes_nothing_apart(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    remote = _remote(str(ssh), "host", "printf", "%s/")
    assert remote.run("a b", "$HOME; false", "it's") == "a b/$HOME; false/it's/"


def test_a_host_that_fails_is_named_with_its_own_words() -> None:
    with pytest.raises(HostError, match="^a: no such version$"):
        _remote(sys.executable, "-c", _FAILS).run("rollout")
    with pytest.raises(HostError, match="^a: exit status 3$"):
        _remote(sys.executable, "-c", "raise SystemExit(3)").run("rollout")
    with pytest.raises(HostError, match="^a: /no/such/program: No such file or directory$"):
        _remote("/no/such/program").run("rollout")
    with pytest.raises(HostError, match="^a: no command is given"):
        _remote().run("rollout")


@pytest.mark.parametrize("says", ["print('[]')", "print('no')", _STATUS])
def test_a_status_that_is_none_is_told(says: str) -> None:
    with pytest.raises(HostError, match="^a: says what is not understood"):
        _remote(sys.executable, "-c", says).models()


def test_only_an_archive_comes_into_a_store_and_none_in_the_place_of_another(tmp_path: Path) -> None:
    for name in ("../x.mar", "x.zip", "a/b.mar"):
        with pytest.raises(UpstreamError, match="no name of an archive"):
            put_archive(tmp_path, name, io.BytesIO(b""))
    with pytest.raises(UpstreamError, match="not a model archive"):
        put_archive(tmp_path, "x.mar", io.BytesIO(b"half of one"))
    assert list(tmp_path.iterdir()) == []
