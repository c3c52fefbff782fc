"""How a chat template reads the content of messages: as a text, or as a list of parts. It is found by trying.

Some templates loop over parts alone and write nothing of a text: Llama Guard 3, MiniMax-Text-01, Mistral Small 3.1 of
its system message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forerun.core.errors import RequestError

_log = logging.getLogger(__name__)

Messages = Sequence[dict[str, Any]]
Forms = Mapping[str, str | None]

_WORD, _OTHER = "qzword", "other"
"""What is looked for in a rendered conversation, and what stands in its other messages."""
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "look", "arguments": {"at": "it"}},
}
_USER: dict[str, Any] = {"role": "user", "content": _OTHER}
_PROBES: Mapping[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "user": ([], []),
    "system": ([], [_USER]),
    "assistant": ([_USER], [_USER]),
    "tool": ([_USER, {"role": "assistant", "content": "", "tool_calls": [_CALL]}], []),
}
"""By role: the messages before and behind the one with the word, those that others need first."""
ROLES = tuple(_PROBES)
NEEDED = ("user", "system")
"""Roles whose words must arrive; some templates leave out earlier answers and results on purpose."""
_OF_RESULTS = {"tool_call_id": _CALL["id"], "name": "look"}


def probed_forms(render: Callable[[Messages], str]) -> Forms:
    """Return by role what `render` writes the content of: `text`, `parts`, or None for neither.

    A role that the template refuses either way counts as read: the refusal is an error, no loss. The other messages of
    a probe are given as the roles before it are read.
    """
    forms: dict[str, str | None] = {}
    for role in _PROBES:
        forms[role] = _probed(role, forms, render)
    return forms


def _probed(role: str, known: Forms, render: Callable[[Messages], str]) -> str | None:
    before, behind = _PROBES[role]
    message = {"role": role, "content": _WORD, **(_OF_RESULTS if role == "tool" else {})}
    refused = 0
    for form in ("text", "parts"):
        messages = [_given(one, known) for one in (*before, message, *behind)]
        messages[len(before)] = _given(message, {role: form})
        try:
            if _WORD in render(messages).lower():
                return form
        except RequestError:
            refused += 1
    return "text" if refused == 2 else None


def _given(message: dict[str, Any], forms: Forms) -> dict[str, Any]:
    """Return a message with its content in the form that its role is read in."""
    if forms.get(str(message["role"])) != "parts":
        return message
    return message | {"content": [{"type": "text", "text": message["content"]}]}


def written_in(forms: Forms, messages: Messages, render: Callable[[Messages], str]) -> str:
    """Render messages of plain texts in these forms; warn where nothing of a user's words arrives.

    Raises RequestError where nothing of the system's does: its words may go to the user's turn instead.
    """
    text = render([_given(one, forms) for one in messages])
    for role in (role for role in NEEDED if forms[role] is None):
        said = [one["content"].strip() for one in messages if one["role"] == role]
        if not any(said) or any(one in text for one in said if one):
            continue
        what = f"the chat template leaves out what the {role} says, as text and as parts"
        if role == "system":
            raise RequestError(f"{what}: give another template (--chat-template)")
        _log.warning("%s", what)
    return text
