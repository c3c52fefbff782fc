"""The names that `forerun models` lists besides those of the caches: models elsewhere that left files in ours."""

from __future__ import annotations

from forerun.core.errors import ConfigError, LoadError
from forerun.hub.names import check_name


def path_of(name: str) -> str:
    """Return the path of a model that is elsewhere, and any other name as it is. Raises ConfigError for one of two."""
    try:
        check_name(name)
    except LoadError:
        from forerun.drafting import learned
        from forerun.model.packed import folder as packed

        models = {of for _, of in packed.copies()} | {entry.model for entry in learned.entries()}
        paths = sorted(str(of) for of in models if of and name == of.stem and of.exists())
        if len(paths) > 1:
            raise ConfigError(f"two models are called {name}: name {' or '.join(paths)}") from None
        return paths[0] if paths else name
    return name
