"""Making guessers: tables of next tokens, from the target's own answers."""
