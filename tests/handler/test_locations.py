"""Locations of logs and caches that are in the environment, and in no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from handler.cache.opening import open_cache, open_store
from handler.errors import LogUnavailable
from handler.log.opening import open_log
from handler.settings import read_location
from tests.conftest import StartServer, url_of


def test_a_location_stands_for_itself() -> None:
    assert read_location("redis://host:6379/0") == "redis://host:6379/0"


def test_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_URL", "redis://:secret@host:6379/0")
    assert read_location("env:SOME_URL") == "redis://:secret@host:6379/0"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("SOME_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_URL", value)
    with pytest.raises(LogUnavailable, match="the environment has no SOME_URL"):
        read_location("env:SOME_URL")


def test_a_wrong_location_in_the_environment_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_URL", "http://:secret@host")
    for opening in (
        lambda: open_log("env:SOME_URL", tmp_path, "id"),
        lambda: open_store("env:SOME_URL", tmp_path, "prefix"),
    ):
        with pytest.raises(LogUnavailable, match="http:// is not known") as error:
            opening()
        assert "secret" not in str(error.value)


def test_a_log_is_opened_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: StartServer
) -> None:
    monkeypatch.setenv("SOME_URL", url_of(start_server()))
    log = open_log("env:SOME_URL", tmp_path, "id")
    assert log.last_seq() == 0
    log.close()


def test_a_cache_is_opened_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: StartServer
) -> None:
    monkeypatch.setenv("SOME_URL", url_of(start_server()))
    sizes = {"tag": 1, "dim": 2, "max_bytes": 1 << 20, "timeout_ms": 1_000, "ttl_s": 60}
    cache = open_cache("env:SOME_URL", tmp_path, prefix="m", version="1.0", **sizes)
    cache.close()
    store = open_store("env:SOME_URL", tmp_path, "m")
    assert list(store.stats()) == []
    store.close()
    assert list(tmp_path.iterdir()) == []  # nothing was kept on this disk
