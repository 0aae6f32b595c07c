"""`training.json`: what is known of a model's training, beside its export and in its archive."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from handler.errors import ModelError
from handler.model.files import TRAINING_NAME


def write_training(folder: Path, metrics: Mapping[str, float]) -> None:
    """Write metrics, by name, into the folder of an export; without any there is no file.

    Raises:
        ModelError: one is not finite.
    """
    path = folder / TRAINING_NAME
    check_finite(path, metrics)  # JSON would have a null for it
    if metrics:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(dict(metrics))) + b"\n")
    else:
        path.unlink(missing_ok=True)


def read_training(folder: Path) -> dict[str, float]:
    """The metrics in the folder of an export; none if it has no file of them.

    Raises:
        ModelError: the file holds something else.
    """
    path = folder / TRAINING_NAME
    try:
        metrics = msgspec.json.decode(path.read_bytes(), type=dict[str, float])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path}: no metrics of a training: {error}") from None
    check_finite(path, metrics)
    return metrics


def check_finite(path: Path, metrics: Mapping[str, float]) -> None:
    """Raise a `ModelError` about a file unless its metrics are finite."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ModelError(f"{path}: the metric {name} is {value}, it must be finite")
