"""Names of models and prompt sets, and how they are fetched."""
