"""From logits to final tokens: logits processing, grammars, verification, where to stop."""
