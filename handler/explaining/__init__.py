"""Explains why a node, or a pair of nodes, is answered as it is: by its sampled neighbours and features."""
