"""The one class that TorchServe finds in a model archive."""

from handler.torchserve import GraphHandler


class Handler(GraphHandler):
    """Serves one model on one graph."""
