"""Reading what a command printed."""

from __future__ import annotations

import json


def last_json(out: str) -> dict:
    """The document on the last line."""
    return json.loads(out.strip().splitlines()[-1])
