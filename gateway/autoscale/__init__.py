"""Scales the workers of model versions with what waits for them."""
