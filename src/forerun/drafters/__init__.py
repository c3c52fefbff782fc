"""Drafters: a file or a folder each, whose name is the method's. `forerun.drafting.base.Drafter` is the protocol."""
