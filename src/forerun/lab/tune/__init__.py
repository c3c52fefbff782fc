"""Tune: a table of a model's own answers, and the drafter and options that are fastest on one machine."""
