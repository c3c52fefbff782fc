"""Training drafters: tables of next tokens, networks and draft models, from the target's own answers."""
