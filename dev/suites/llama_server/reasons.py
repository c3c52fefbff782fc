"""Why a test of the suite does not pass."""

from __future__ import annotations

import re
from collections.abc import Mapping

NOT_BUILT: Mapping[str, str] = {
    "compat_gcp": "not built: Google's form of prediction requests",
    "kv_keep_only_active": "not built: a copy of idle slots in host memory; prefixes stay in the cache",
    "lora": "not built: adapters",
    "mcp_servers": "not built: running tools in the server",
    "proxy": "not built: a proxy for the page",
    "rerank": "not built: models that rank",
    "sleep": "not built: unloading an idle model",
    "slot_save": "not built: slots on disk",
    "stream": "not built: streams that can be resumed",
    "tools_builtin": "not built: running tools in the server",
    "vision_api": "not built: images",
}
"""Files that are about one feature, which is not there."""

_BY_NAME: tuple[tuple[str, str], ...] = ()
_BY_TEXT: tuple[tuple[str, str], ...] = ()


def reason(test: str, text: str) -> str:
    """The reason of a miss, from the test's name or what it said; `open` where none is known."""
    for pattern, why in _BY_NAME:
        if re.search(pattern, test):
            return why
    for pattern, why in _BY_TEXT:
        if re.search(pattern, text):
            return why
    return "open"
