"""The graph: snapshot, ids, features and sampler."""
