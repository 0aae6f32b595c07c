"""A graph in a Redis Cluster, for graphs that outgrow one machine's memory.

It is pushed there from a snapshot (`push`), and read back in windows (`window`): the nodes that a batch of
seeds needs, as a snapshot in memory, which is sampled like any other.
"""
