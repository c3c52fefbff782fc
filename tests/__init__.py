"""A package, so that `tests.<module>` never means a stray `tests` of another distribution."""
