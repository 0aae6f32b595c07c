"""Graphs from the tables that users bring: `graph.read_table_graph` is where it starts."""
