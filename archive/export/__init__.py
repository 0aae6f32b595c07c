"""Exports trained models for serving, after proof that the file answers as the eager model does."""
