"""Indexes and tables of tokens that were seen before."""
