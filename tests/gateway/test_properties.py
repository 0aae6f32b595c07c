"""The configuration says where the server is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import UpstreamError
from gateway.upstream.properties import read_properties


def test_the_projects_own_configuration_is_safe() -> None:
    properties = read_properties(Path(__file__).parents[2] / "config.properties")
    for url in (properties.inference_url, properties.management_url, properties.metrics_url):
        assert url.startswith("http://127.0.0.1:")
    assert properties.token_auth
    assert properties.model_store == properties.file.parent / "model_store"


def test_what_is_left_out_is_torchserves_default(tmp_path: Path) -> None:
    (tmp_path / "config.properties").write_text("# nothing\nmodel_store=/abs/store\n")
    properties = read_properties(tmp_path / "config.properties")
    assert properties.inference_url == "http://127.0.0.1:8080"
    assert properties.model_store == Path("/abs/store")
    assert properties.key_file == tmp_path / "key_file.json"
    assert properties.max_request_bytes == 6_553_500


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"missing.properties: cannot be read: No such file"):
        read_properties(tmp_path / "missing.properties")
    (tmp_path / "bad.properties").write_text("max_request_size=6 MB")
    with pytest.raises(UpstreamError, match=r"bad.properties: max_request_size=6 MB is no number of bytes"):
        read_properties(tmp_path / "bad.properties")
    (tmp_path / "bad.properties").write_text("a=\\u12")
    with pytest.raises(UpstreamError, match=r"bad.properties: not a properties file"):
        read_properties(tmp_path / "bad.properties")
