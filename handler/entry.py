"""The one class that TorchServe finds in a model archive."""

from handler.torchserve import ModelHandler


class Handler(ModelHandler):
    """Serves one model on one graph."""
