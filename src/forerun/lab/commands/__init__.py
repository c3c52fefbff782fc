"""One file a command of the laboratory."""
