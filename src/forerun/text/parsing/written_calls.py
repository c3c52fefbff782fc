"""How families write calls, for a grammar of calls that must be made and for a model's own turns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_VALUE = re.compile(r"\$((?:[^\w$][^$]*?)?)(value|word)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCalls:
    """How calls are written: `open`, calls with `between` between them, `close`."""

    open: str = ""
    call: str
    """With its `$name` and `$args`; `$id` is any nine letters and digits, `$0` or `$1` a number, of the first this."""
    between: str | None = ""
    """None: there is one call."""
    close: str = ""
    pair: str = ""
    """A `$key` and its `$value`, what says its `$type` or that it `$is_text`; empty: arguments are JSON.

    `$word`: True, False and None as Python has them. Behind the `$` stand the quotes of texts.
    """
    comma: str = ""
    """What stands between two pairs."""

    @property
    def is_python(self) -> bool:
        """True if texts have Python's quotes, in which its escapes hold."""
        return "$'" in self.pair

    def around(self, key: str, kind: str) -> tuple[str, str]:
        """Return what stands before and behind a parameter's value of a type of JSON."""
        before, quote, _, after = _VALUE.split(self.pair)
        quote = quote if kind == "string" else ""
        before = before.replace("$is_text", str(kind == "string").lower())
        before = before.replace("$type", kind.replace("integer", "number"))
        return before.replace("$key", key) + quote, quote + after.replace("$key", key)

    def spelled(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Write calls, given as names and arguments."""
        texts = []
        for number, (name, arguments) in enumerate(calls):
            body = spelled(arguments)
            if self.pair:
                body = self.comma.join(self._pair(*one) for one in arguments.items())
            parts = {"$name": name, "$args": body, "$id": f"{number:09}", "$0": str(number)}
            parts["$1"] = str(number + 1)
            pieces = re.split(r"(\$(?:name|args|id|0|1))", self.call)
            texts.append("".join(parts.get(piece, piece) for piece in pieces))
        return self.open + (self.between or "").join(texts) + self.close

    def _pair(self, key: str, value: object) -> str:
        kind = "string" if isinstance(value, str) else "null" if value is None else "object"
        before, after = self.around(key, kind)
        text = value if isinstance(value, str) else spelled(value)
        if "word" in self.pair and (value is None or isinstance(value, bool)):
            text = str(value)
        if self.is_python and isinstance(value, str):
            text = repr(f'"{value}')[2:-1]  # the first sign has the outer quotes be single
        return f"{before}{text}{after}"


def spelled(arguments: object) -> str:
    """Write arguments as JSON, if they are not its text already."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
