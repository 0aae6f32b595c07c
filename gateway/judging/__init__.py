"""Judges versions by what was observed of them."""
