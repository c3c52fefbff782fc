"""Replicas on Ray Serve: `forerun serve --replicas N`, or `serve run forerun.server.ray:app`. Needs the extra `ray`."""

from __future__ import annotations

__all__ = ["app"]


def __getattr__(name: str) -> object:
    """Import Ray when the application is asked for: what the rooms here share needs none."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forerun.server.ray.deploy import app

    return app
