"""From logits to final tokens: logits processing, the two rules of verification, where to stop."""
