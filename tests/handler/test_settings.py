"""Settings are checked once, and name the key that is wrong."""

from __future__ import annotations

import pytest

from handler.errors import SettingsError
from handler.settings import parse_settings


def test_defaults() -> None:
    settings = parse_settings({"graph": "/data/graph"})
    assert (settings.graph, settings.device, settings.max_nodes_per_request) == ("/data/graph", "auto", 2048)
    assert settings.max_response_bytes < 6_553_500, "TorchServe kills the worker of a larger answer"


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({}, "missing required field `graph`"),
        ({"graph": 3}, r"Expected `str`, got `int` - at `\$.graph`"),
        ({"graph": "g", "device": "tpu"}, r"Invalid enum value 'tpu' - at `\$.device`"),
        ({"graph": "g", "max_nodes_per_request": 0}, r"Expected `int` >= 1 - at `\$.max_nodes_per_request`"),
        ({"graph": "g", "max_node_per_request": 5}, "unknown field `max_node_per_request`"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(section: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        parse_settings(section)
