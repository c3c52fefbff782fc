"""What an answer must look like: a JSON schema, a regular expression, one of some texts, or a grammar.

The names are vLLM's. What they mean is compiled in `decoding/guidance.py`.
"""

from __future__ import annotations

import json as json_lib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from forerun.core.errors import RequestError, reject, short_repr

KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""Of which exactly one is given."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "disable_additional_properties": (None, False),
    "disable_any_whitespace": (None, False, True),  # `whitespace_pattern` says what is allowed
    "disable_fallback": (None, False, True),  # there is one library
    "structural_tag": (None,),
}
"""vLLM's other fields, with the values that ask for nothing."""


LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written, in llguidance's words; most of the structure then has one form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer; exactly one of the first five is given, or `after` and `max_before` alone.

    Raises RequestError for anything else.

    Objects and lists are written on one line, with a space after each colon and comma, so most of the structure has one
    form and need not be decoded token by token.
    """

    json: str | Mapping[str, Any] | type | None = None
    """A JSON schema as mapping or text, or a pydantic model."""
    json_object: bool | None = None
    """True: the answer is any one JSON object."""
    regex: str | None = None
    """A regular expression that the whole answer matches."""
    choice: Sequence[str] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """A grammar in GBNF (llama.cpp's and xgrammar's `root ::= ...`) or Lark (`start: ...`)."""
    whitespace_pattern: str | None = None
    """White space that JSON may have between its parts, as a regular expression."""
    after: str | None = None
    """A mark that stands before all that, and anything before the mark: the end of a thought that the prompt begins."""
    max_before: int | None = None
    """Tokens before the mark, which is written if it has not come by then."""

    def __post_init__(self) -> None:
        given = self._kinds()
        if len(given) != 1 and not self.bounds_thought:
            raise RequestError(
                f"structured_outputs must be exactly one of {', '.join(KINDS)}, "
                f"got {' and '.join(given) or 'none'}",
                option="structured_outputs",
            )
        for name in ("regex", "grammar", "whitespace_pattern", "after"):
            if not isinstance(getattr(self, name), str | None):
                raise RequestError(f"{name} must be text, got {short_repr(getattr(self, name))}")
        if not isinstance(self.json_object, bool | None):
            raise RequestError(f"json_object must be true, got {short_repr(self.json_object)}")
        if not isinstance(self.max_before, int | None) or isinstance(self.max_before, bool):
            raise RequestError(
                f"max_before must be a whole number, got {short_repr(self.max_before)}"
            )
        if self.choice is not None:
            _check_choice(self.choice)
            object.__setattr__(self, "choice", tuple(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _dumped(_schema(self.json)))
        if self.whitespace_pattern is not None and self.kind not in KINDS[:2]:
            raise RequestError("whitespace_pattern belongs to json and json_object")

    @classmethod
    def read(cls, given: object) -> Self:
        """Read the parameters from a request's JSON. Raises RequestError for an unknown field."""
        if not isinstance(given, Mapping):
            message = f"structured_outputs must be an object, got {short_repr(given)}"
            raise RequestError(message, option="structured_outputs")
        known = [field.name for field in fields(cls)]
        others = {name: value for name, value in given.items() if name not in known}
        reject(others, _NEUTRAL, "field of structured_outputs", known)
        return cls(**{name: value for name, value in given.items() if name in known})

    @property
    def kind(self) -> str:
        """Which of `KINDS` is given; `thought` if it is `after` and `max_before` alone."""
        return next(iter(self._kinds()), "thought")

    @property
    def bounds_thought(self) -> bool:
        """Whether anything may come behind the mark, which is written once the tokens before it are used up."""
        return not self._kinds() and self.after is not None and self.max_before is not None

    def _kinds(self) -> list[str]:
        """List the constraints that are given: a schema `false` is one, None is not."""
        given = [name for name in KINDS if getattr(self, name) is not None]
        return [name for name in given if name != "json_object" or self.json_object is not False]

    @property
    def source(self) -> str:
        """The schema, expression, texts or grammar as one text, whose size and nesting a server bounds."""
        if self.choice is not None:
            return json_lib.dumps(self.choice)
        return str(self.json or self.regex or self.grammar or "")


def _dumped(schema: object) -> str:
    try:
        return json_lib.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"json must be a JSON schema, and cannot be written: {error}") from error


def depth(schema: object) -> int:
    """Return how deeply lists and objects are nested in each other."""
    deepest, level = 0, [schema]
    while level := [inner for value in level for inner in _parts(value)]:
        deepest += 1
    return deepest


def _parts(value: object) -> Iterator[object]:
    """Yield what a list or an object holds; a value that holds nothing else ends a level."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _check_choice(choice: object) -> None:
    if not isinstance(choice, Sequence) or isinstance(choice, str) or not choice:
        raise RequestError(f"choice must be a list of texts, got {short_repr(choice)}")
    for text in choice:
        if not isinstance(text, str) or not text:
            raise RequestError(
                f"choice must be a list of texts, none empty, got {short_repr(text)}"
            )


def _schema(given: Any) -> object:
    """Return a schema as JSON values. Raises RequestError for what is none."""
    if hasattr(given, "model_json_schema"):
        given = given.model_json_schema()
    if isinstance(given, str):
        try:
            given = json_lib.loads(given)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"json must be a JSON schema, and is not JSON: {error}") from error
    if isinstance(given, bool):
        return {"allOf": [given]}  # which llguidance reads everywhere but at the top
    if not isinstance(given, Mapping):
        raise RequestError(f"json must be a JSON schema, an object, got {short_repr(given)}")
    if _has_id_beside_ref(json_lib.loads(_dumped(given))):
        raise RequestError(
            "json cannot be used: an id stands beside a $ref, where drafts up to 7 ignore it: "
            "leave it out"
        )
    return given


_OLD_DRAFT = re.compile(r'"\$schema": "[^"]*draft-0[3-7]')


def _has_id_beside_ref(schema: object) -> bool:
    """Return whether later drafts, and so llguidance, would find another schema at a `$ref` than the one that is meant.

    An id of the whole document changes nothing: what its references point to is in it.
    """
    level = [*_parts(schema)] if _OLD_DRAFT.search(json_lib.dumps(schema)) else []
    while level:
        refs = [
            value
            for value in level
            if isinstance(value, Mapping) and isinstance(value.get("$ref"), str)
        ]
        if any(isinstance(value.get(name), str) for value in refs for name in ("$id", "id")):
            return True
        level = [inner for value in level for inner in _parts(value)]
    return False


_OPEN = ("additionalProperties", "unevaluatedProperties", "patternProperties", "$ref", "if")
_UNIONS = ("anyOf", "oneOf")


def closed(schema: Any) -> Any:
    """Return the schema with no more properties in its objects than it names, where it leaves that open.

    Models would go on inventing some. What it allows is allowed by the schema too. Schemas with `allOf` stay as they
    are: each of its parts names only some of the properties.
    """
    return schema if "allOf" in json_lib.dumps(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    closed_schema = {**schema}
    has_properties = bool(closed_schema.get("properties"))
    for name in ("properties", "$defs", "definitions"):
        if isinstance(parts := closed_schema.get(name), Mapping):
            closed_schema[name] = {key: _closed(part) for key, part in parts.items()}
    for name in ("items", "additionalProperties"):
        if name in closed_schema:
            closed_schema[name] = _closed(closed_schema[name])
    for name in ("prefixItems", *(() if has_properties else _UNIONS)):
        if isinstance(parts := closed_schema.get(name), list):
            closed_schema[name] = [_closed(part) for part in parts]
    if has_properties and not any(name in closed_schema for name in (*_OPEN, *_UNIONS)):
        closed_schema["additionalProperties"] = False
        if isinstance(required := closed_schema.get("required"), list):
            others: dict[str, Any] = {
                key: {} for key in required if key not in closed_schema["properties"]
            }
            closed_schema["properties"] |= others
    return closed_schema
