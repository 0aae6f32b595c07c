"""Measures a server under load, and proposes settings."""
