"""The model: its signature, its batches and the runtime that runs it."""
