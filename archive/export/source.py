"""Finds the class of a user's model, and fills it with its weights."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from handler.errors import ModelError, in_one_line

# Under what names training frameworks keep the weights within a checkpoint.
_NAMES_OF_WEIGHTS = ("state_dict", "model_state_dict", "model", "weights")


def load_model(class_path: str, arguments: Mapping[str, Any], weights: Path) -> nn.Module:
    """Make a model and load its weights, ready to be evaluated.

    Args:
        class_path: `package.module:Class`; modules in the working directory are found too.
        arguments: of the class.
        weights: a file that `torch.save` made of a state dict, or of a checkpoint that holds one. It is read
            without running code of its own.

    Raises:
        ModelError: there is no such class, it does not take these arguments, or the weights do not fit it.
    """
    model = _made(_found(class_path), class_path, arguments)
    state = _read_state(weights)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        problems = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
        raise ModelError(f"{weights}: does not fit {class_path}: {' '.join(problems)[:500]}") from None
    return model.eval()


def _found(class_path: str) -> type[nn.Module]:
    module_name, _, name = class_path.partition(":")
    if not module_name or not name:
        raise ModelError(f"{class_path!r} is no class: write it as package.module:Class")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module_name)
    except ImportError as error:
        raise ModelError(f"{class_path}: {module_name} cannot be imported: {error}") from None
    except Exception as error:
        raise ModelError(f"{class_path}: {module_name} fails when imported: {in_one_line(error)}") from error
    made = getattr(found, name, None)
    if not isinstance(made, type) or not issubclass(made, nn.Module):
        raise ModelError(f"{class_path}: {module_name} has no torch.nn.Module called {name}")
    return made


def _made(model_class: type[nn.Module], class_path: str, arguments: Mapping[str, Any]) -> nn.Module:
    try:
        return model_class(**arguments)
    except Exception as error:
        raise ModelError(
            f"{class_path} cannot be made with {dict(arguments)}: {in_one_line(error)}"
        ) from error


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except Exception as error:  # noqa: BLE001 - torch.load has no error of its own
        raise ModelError(
            f"{path}: not weights that torch.save made of a state dict: {in_one_line(error)}"
        ) from None
    for name in _NAMES_OF_WEIGHTS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ModelError(
            f"{path}: holds no state dict, alone or as {', '.join(map(repr, _NAMES_OF_WEIGHTS))}"
        )
    return content
