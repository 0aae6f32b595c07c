"""What was computed before, and the proof that it still holds."""
