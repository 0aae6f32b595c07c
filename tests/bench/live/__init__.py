"""A graph that changes: what changes cost, when they count, and what they cost those who ask."""
