"""The durable log of a graph's mutations."""
