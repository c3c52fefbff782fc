"""Draft without memory of other requests, so that nobody learns by time what others asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forerun.core.config import DRAFT_FIELDS, EngineConfig
from forerun.core.errors import ConfigError
from forerun.drafting.spec import DrafterSpec

_FORGETFUL = ("none", "prompt_lookup", "lookahead", "draft_model", "early_exit")
"""Drafters that know nothing of other requests."""


def without_sharing(config: EngineConfig) -> EngineConfig:
    """Give a configuration a drafter that never drafts from another request's tokens; `suffix` for auto.

    Raises ConfigError for a drafter that learns from all requests.
    """
    spec = DrafterSpec.of_config(config)
    if spec.is_auto:
        spec = DrafterSpec.of("suffix")
    parts = spec.parts or (spec,)
    for part in parts:
        if part.name not in _FORGETFUL and part.name != "suffix":
            raise ConfigError(
                f"drafter {part.name} learns from all requests, which --no-shared-drafts rules out "
                f"(allowed: suffix, {', '.join(_FORGETFUL)})"
            )
    if config.learn:
        raise ConfigError("give --learn or --no-shared-drafts, not both")
    drafter = "++".join(map(_alone, parts))
    unset: dict[str, Any] = dict.fromkeys(DRAFT_FIELDS)
    return replace(config, drafter=drafter, draft_options={}, **unset)


def _alone(part: DrafterSpec) -> str:
    if part.name != "suffix":
        return part.text()
    return replace(part, options={**part.options, "shared_tokens": 0}).text()
