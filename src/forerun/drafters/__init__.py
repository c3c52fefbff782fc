"""Drafters: one file each, the file's name is the method's name. See `base.Drafter` for the protocol."""
