"""`hopserve tune`, with a TorchServe of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest

from archive.pack import PackPlan, pack
from tests.conftest import Example
from tests.scripts.test_ingest import HOPSERVE

_SHORT = ["--rate", "50", "--seconds", "0.5", "--batch-sizes", "8", "--delays-ms", "1"]
_SHORT += ["--workers", "1", "--threads", "1", "--rounds", "1"]


def _tune(*arguments: object, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(HOPSERVE), "tune", *map(str, arguments)]
    env = os.environ | ({"TMPDIR": str(temporary)} if temporary else {})
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.fixture
def archive(example: Example, tmp_path: Path) -> Path:
    plan = PackPlan(name="graphsage", version="1.0", model_folder=example.export, graph_folder=example.graph)
    return pack(plan, tmp_path)


def test_a_model_is_measured_and_settings_are_proposed(archive: Path, tmp_path: Path) -> None:
    before = archive.read_bytes()
    picture, file = tmp_path / "trade-off.html", tmp_path / "tuned.json"
    options = ["--p99-ms", "1000", "--plot", picture, "--json", file]
    done = _tune(archive, *_SHORT, *options, temporary=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "batch 64, delay 1 ms, 1 worker" in done.stdout
    assert "batch 8, delay 1 ms, 1 worker" in done.stdout
    assert "Why: " in done.stdout
    assert picture.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(file.read_text())
    assert archive.read_bytes() == before
    assert not list(tmp_path.glob("hopserve-tune-*"))
    mine = f"{tmp_path}/hopserve-tune-"
    assert not [process for process in psutil.process_iter(["cmdline"]) if mine in str(process.info)]


def test_what_cannot_be_measured_is_said_in_one_line(archive: Path, tmp_path: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:1_000])
    done = _tune(archive, *_SHORT)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    for arguments in ([archive, "--rate", "0"], [archive, "--batch-sizes", "0"], [tmp_path / "no.mar"]):
        assert _tune(*arguments).returncode == 2
