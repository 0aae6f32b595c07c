"""Verbs for people: shell scripts, and the `hopserve` command line."""
