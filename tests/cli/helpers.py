"""Reading what a command printed."""

from __future__ import annotations

import json


def the_json(out: str) -> dict:
    """The document, beside which nothing was printed."""
    return json.loads(out)
