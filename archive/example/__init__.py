"""An example to start from: a GraphSAGE, and its training."""
