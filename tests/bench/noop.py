"""A TorchServe handler that does nothing: what TorchServe itself can answer."""


def handle(data, context):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Answer every request of a batch with two bytes."""
    return [b"{}"] * len(data or [])
