"""Envoy: its configuration, files, process and administration."""
