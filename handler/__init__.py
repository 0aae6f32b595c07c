"""Hopserve's serving engine: what runs inside a TorchServe worker."""

__version__ = "0.1.0"
