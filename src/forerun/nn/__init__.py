"""One decoder for all families; a family is one small file in `arch/`."""
