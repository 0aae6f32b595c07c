"""The one class that TorchServe finds in the archive through which a graph is changed."""

from handler.torchserve import GraphHandler


class Handler(GraphHandler):
    """Takes the mutations of one graph."""
