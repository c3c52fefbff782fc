"""Packed weights on disk: a file a model, so that a start only maps what an earlier one has packed."""
