"""What a model says of all nodes of a graph, computed layer by layer before anybody asks."""
