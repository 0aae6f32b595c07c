"""What several tests of deployment need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.container import build


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image has in /opt/hopserve."""
    return build(tmp_path_factory.mktemp("image"))
