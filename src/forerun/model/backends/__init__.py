"""One file a backend: what can run a model, and how its weights get there. See `base.Backend`."""
