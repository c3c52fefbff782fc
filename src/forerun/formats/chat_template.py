"""Chat templates: Jinja programs in model files that write conversations as the model knows them.

They are code from the model's file, so they run in Jinja's sandbox. They see what they see in the
transformers library, where most are written: its whitespace rules, `raise_exception`, `strftime_now`, `tojson`,
`break` and `continue`, and `generation` blocks, which mark text for training and do nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.core.errors import RequestError


class ChatTemplate:
    """A compiled template. Raises RequestError if it is not valid Jinja."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlock],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise RequestError(f"the model's chat template is not valid: {error}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        """The conversation as text. Raises RequestError if the template refuses the messages."""
        _check(messages)
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except RequestError:
            raise
        # A template is a program, and whatever it raises is its own fault or the messages'.
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise RequestError(f"the chat template cannot take these messages: {reason}") from error


def _check(messages: Sequence[Mapping[str, str]]) -> None:
    if not messages:
        raise RequestError("the conversation is empty: give at least one message")
    for number, message in enumerate(messages):
        if not {"role", "content"} <= message.keys():
            raise RequestError(
                f"message {number} has {', '.join(message) or 'nothing'}: it needs role and content"
            )


def _refuse(message: str) -> NoReturn:
    raise RequestError(f"the chat template refuses these messages: {message}")


def _to_json(value: object, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML and sorts keys.
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` is its body."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
