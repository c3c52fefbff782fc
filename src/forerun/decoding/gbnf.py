"""GBNF, llama.cpp's notation of grammars, read as it defines it and written as llguidance takes it.

GBNF has no lexer: rules are over characters, and `[a-z]+ "ing"` matches "running". llguidance's are over words, of
which it takes the longest. So rules that call each other without recursion become one regular expression, and of
others each character is a word of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from forerun.core.errors import short_repr

LONGEST_EXPRESSION = 1 << 16
"""Letters of an expression: rules that call others twice each grow without bounds."""

_IS_GBNF = re.compile(r"^[ \t]*+[\w-]++\s*+::=", re.MULTILINE)
_SPACE = re.compile(r"(?:\s++|#[^\r\n]*+)*+")
_NAME = re.compile(r"[A-Za-z0-9_-]++")
_RULE = re.compile(rf"({_NAME.pattern}){_SPACE.pattern}::=")
_REPEAT = re.compile(r"\{\s*+(\d++)\s*+(?:(,)\s*+(\d*+)\s*+)?\}|[*+?]")
_TOKEN = re.compile(r"(!?)(<(?:\[(\d+)\]|[^>]*)>)")
_CHAR = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)|([^\\])", re.DOTALL
)
_ESCAPES = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "b": "\b",
    "f": "\f",
    "v": "\v",
    **{c: c for c in "\\\"'[]-^/"},
}
_ANY = r"(?s:.)"


@dataclass(frozen=True, slots=True)
class _Char:
    """One character, as a regular expression."""

    expression: str


@dataclass(frozen=True, slots=True)
class _Token:
    """One token, as llguidance writes it."""

    spelled: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class _Group:
    """Alternatives, each of parts that follow each other, so many times."""

    alternatives: list[list[_Part]]
    times: str = ""


_Part = _Char | _Token | _Rule | _Group


def is_gbnf(grammar: str) -> bool:
    """Tell whether a grammar is written in GBNF: whether a line begins with `name ::=`."""
    return _IS_GBNF.search(grammar) is not None


def translated(grammar: str, token_id: Callable[[str], int | None]) -> tuple[str | None, str]:
    """Return a regular expression if there is one, and the grammar in Lark's notation.

    `token_id` returns the id of a text that is one token. Raises ValueError for what is not GBNF.
    """
    rules = _Reader(grammar, token_id).rules()
    try:
        expression = _expression(rules["root"], rules, ())
    except (_NotRegularError, RecursionError):
        expression = None
    numbers = {name: "start" if name == "root" else f"r{i}" for i, name in enumerate(rules)}
    lines = (f"{numbers[name]}: {_lark(rule, numbers)}" for name, rule in rules.items())
    return expression, "\n".join(lines)


class _Reader:
    """Reads the text of a grammar from its beginning to its end."""

    def __init__(self, text: str, token_id: Callable[[str], int | None]) -> None:
        self._text, self._at, self._token_id = text, 0, token_id

    def rules(self) -> dict[str, _Group]:
        """Read all rules by their names. Raises ValueError for one that is missing."""
        rules: dict[str, _Group] = {}
        called: set[str] = {"root"}
        self._skip()
        while self._at < len(self._text):
            name = self._found(_RULE, "a rule, name ::= ...")[1]
            self._skip()
            rules[name] = self._alternatives(called)
        if missing := called - rules.keys():
            raise ValueError(f"there is no rule '{min(missing)}'")
        return rules

    def _alternatives(self, called: set[str]) -> _Group:
        found = [[*self._sequence(called)]]
        while self._text.startswith("|", self._at):
            self._skip(1)
            found.append([*self._sequence(called)])
        return _Group(found)

    def _sequence(self, called: set[str]) -> Iterator[_Part]:
        """Read parts up to the end of an alternative, and how often each comes."""
        while (part := self._part(called)) is not None:
            self._skip()
            while repeat := _REPEAT.match(self._text, self._at):
                self._skip(len(repeat[0]))
                part = self._repeated(part, repeat)
            yield part

    def _repeated(self, part: _Part, repeat: re.Match[str]) -> _Group:
        least, comma, most = repeat.groups(default="")
        if not least:
            return _Group([[part]], repeat[0])
        bounds = f"{{{least}{comma}{most}}}"
        if (most or not comma) and not int(most or least):
            return _Group([[]])  # never: llguidance has no such bound
        if most and int(most) < int(least):
            self._fail(f"no {bounds}")
        return _Group([[part]], bounds)

    def _part(self, called: set[str]) -> _Part | None:
        sign = self._text[self._at : self._at + 1]
        if not sign or sign in "|)" or _RULE.match(self._text, self._at):
            return None
        if sign == '"':
            self._at += 1
            return _Group([[_Char(spelled(char)) for char in self._chars('"')]])
        if sign == "[":
            return self._class()
        if sign == "(":
            self._skip(1)
            group = self._alternatives(called)
            self._found(re.compile(r"\)"), "')'")
            return group
        if sign == ".":
            self._at += 1
            return _Char(_ANY)
        if sign in "<!":
            return self._token()
        name = self._found(_NAME, "a text, a class, a rule or a group")[0]
        called.add(name)
        return _Rule(name)

    def _class(self) -> _Part:
        negated = self._text.startswith("[^", self._at)
        self._at += 1 + negated
        ranges = []
        chars = self._chars("]")
        for first in chars:
            last = first
            if re.match(r"-[^\]]", self._text[self._at : self._at + 2]):
                self._at += 1
                last = next(chars)
            if last < first:
                self._fail(f"no range {short_repr(first)} to {short_repr(last)}")
            ranges.append(spelled(first) + (f"-{spelled(last)}" if last != first else ""))
        return _Char(f"[{'^' * negated}{''.join(ranges)}]") if ranges else _Group([[]])

    def _chars(self, end: str) -> Iterator[str]:
        """Read characters, escapes resolved, up to an end and over it."""
        while not self._text.startswith(end, self._at):
            found = _CHAR.match(self._text, self._at)
            if found is None:
                self._fail(f"a character or {end}")
            *codes, escaped, plain = found.groups(default="")
            if escaped and escaped not in _ESCAPES:
                self._fail(r"\n, \r, \t, \xXX, \uXXXX, \UXXXXXXXX or an escaped sign")
            self._at = found.end()
            code = next((int(code, 16) for code in codes if code), None)
            if code is not None and (code > 0x10FFFF or 0xD800 <= code < 0xE000):
                self._fail("the code of a character")
            yield plain or (_ESCAPES[escaped] if code is None else chr(code))
        self._at += len(end)

    def _token(self) -> _Part:
        negated, text, number = self._found(_TOKEN, "a token, <[id]> or <text>").groups()
        token = self._token_id(text) if number is None else int(number)
        if token is None:
            self._fail(f"one token of the model instead of {text}")
        return _Token(f"<[{'^' if negated else ''}{token}]>")

    def _found(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            self._fail(wanted)
        self._at = found.end()
        return found

    def _skip(self, length: int = 0) -> None:
        """Go on over so many letters, and over space and comments behind them."""
        found = _SPACE.match(self._text, self._at + length)
        assert found is not None
        self._at = found.end()

    def _fail(self, wanted: str) -> NoReturn:
        there = short_repr(self._text[self._at :]) if self._at < len(self._text) else "the end"
        line = self._text.count("\n", 0, self._at) + 1
        raise ValueError(f"line {line} has {there}, where GBNF has {wanted}")


class _NotRegularError(Exception):
    """A grammar is recursive, or names tokens."""


def _expression(part: _Part, rules: dict[str, _Group], above: tuple[str, ...]) -> str:
    """Return the expression of a part. `above` are the rules that it stands in."""
    if isinstance(part, _Char):
        return part.expression
    if isinstance(part, _Token) or (isinstance(part, _Rule) and part.name in above):
        raise _NotRegularError
    if isinstance(part, _Rule):
        return _expression(rules[part.name], rules, (*above, part.name))
    texts = ("".join(_expression(p, rules, above) for p in parts) for parts in part.alternatives)
    found = f"(?:{'|'.join(texts)}){part.times}"
    if len(found) > LONGEST_EXPRESSION:
        raise _NotRegularError
    return found


def _lark(part: _Part, names: dict[str, str]) -> str:
    if isinstance(part, _Char):
        return f"/{part.expression}/"
    if isinstance(part, _Token):
        return part.spelled
    if isinstance(part, _Rule):
        return names[part.name]
    texts = (" ".join(_lark(p, names) for p in parts) or '""' for parts in part.alternatives)
    return f"({' | '.join(texts)}){part.times}"


def spelled(text: str) -> str:
    """Return a text as an expression for itself; a character in a class, too."""
    return "".join(c if c.isalnum() and c.isascii() else rf"\x{{{ord(c):x}}}" for c in text)
