"""From logits to final tokens: the one warp, the two rules of verification, where to stop."""
