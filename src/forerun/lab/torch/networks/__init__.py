"""Networks that draft, in torch: what is trained, and the oracles of the native ones."""
