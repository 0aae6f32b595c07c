"""A canary rollout: what two versions did, and what follows from it."""
