"""Drafters: a file or a folder each, whose name is the method's. `base.contract.Drafter` is the protocol."""
