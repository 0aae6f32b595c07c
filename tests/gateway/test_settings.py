"""What `gateway.yaml` may hold."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from gateway.errors import GatewayError
from gateway.settings import ApiKeys, GatewaySettings, read_api_keys, read_settings

_KEY = "0123456789abcdef"


def _read(folder: Path, text: str) -> GatewaySettings:
    (folder / "gateway.yaml").write_text(text)
    return read_settings(folder / "gateway.yaml")


def test_without_a_file_all_is_as_usual(tmp_path: Path) -> None:
    assert read_settings(tmp_path / "gateway.yaml") == GatewaySettings()
    assert _read(tmp_path, "") == GatewaySettings()


def test_a_file_names_what_differs(tmp_path: Path) -> None:
    settings = _read(tmp_path, "listen: {port: 9000}\nautoscale:\n  graphsage: {max_workers: 4}\n")
    assert (settings.listen.port, settings.listen.address) == (9_000, "127.0.0.1")
    assert settings.autoscale["graphsage"].max_workers == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listen: {port: 0}", r"Expected `int` >= 1 - at `\$.listen.port`"),
        ("lisen: {}", "Object contains unknown field `lisen`"),
        ("breaker: {error_rate: 5}", r"Expected `float` <= 1.0 - at `\$.breaker.error_rate`"),
        ("time_outs: {answer_s: .nan}", r"at `\$.time_outs.answer_s`"),
        ("autoscale: {m: {min_workers: 3}}", "min_workers is 3, which is above max_workers: 2"),
        ("sticky_header: 'a b'", r"at `\$.sticky_header`"),
        ("models: ['a/b']", r"at `\$.models"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ("listen: [", "while parsing a flow"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(GatewayError, match=message):
        _read(tmp_path, text)


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(f"alice: {_KEY}\n")
    assert read_api_keys(ApiKeys(file="keys.yaml"), tmp_path, "ignored=x") == {"alice": _KEY}
    assert read_api_keys(ApiKeys(), tmp_path, f"a={_KEY}, b={_KEY}=") == {"a": _KEY, "b": f"{_KEY}="}
    assert read_api_keys(ApiKeys(), tmp_path, None) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice=short", "the key of alice must be 16 or more"),
        (f"alice={_KEY},bob={_KEY}", "two names have the same key"),
        (f"alice={_KEY} {_KEY}", "the key of alice must be"),
        (_KEY, "is not name=key,name=key"),
        ("", "keys are required, and there are none"),
    ],
)
def test_keys_that_cannot_be_are_refused_and_not_shown(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(GatewayError, match=message) as error:
        read_api_keys(ApiKeys(required=True), tmp_path, text)
    assert _KEY not in str(error.value)


def test_a_broken_file_of_keys_is_refused_and_not_shown(tmp_path: Path) -> None:
    for content in (f"[{_KEY}]", f"alice: [{_KEY}]", f"alice: '{_KEY}"):
        (tmp_path / "keys.yaml").write_text(content)
        with pytest.raises(GatewayError, match="is no YAML of names and keys") as error:
            read_api_keys(ApiKeys(file="keys.yaml"), tmp_path, None)
        assert _KEY not in str(error.value)
    with pytest.raises(GatewayError, match="none.yaml: cannot be read"):
        read_api_keys(ApiKeys(file="none.yaml"), tmp_path, None)


def test_the_projects_own_file_shows_every_default() -> None:
    file = Path(__file__).parents[2] / "gateway.yaml"
    assert read_settings(file) == GatewaySettings()
    shown = yaml.safe_load(file.read_text())
    defaults = msgspec.to_builtins(GatewaySettings())
    assert shown.keys() == defaults.keys()
    for name, section in defaults.items():
        if isinstance(section, dict):
            assert shown[name].keys() == section.keys(), name
