"""Chat templates: Jinja programs in model files that write conversations as the model knows them.

They are code from the model's file, so they run in Jinja's sandbox. They see what they see in the
transformers library, where most are written: its whitespace rules, `raise_exception`, `strftime_now`, `tojson`,
`break` and `continue`, and `generation` blocks, which mark text for training and do nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.core.errors import RequestError, unknown
from forerun.text.messages import Message, Tools, check_tools, plain

_GIVEN = {"add_generation_prompt", "chat_template", "tools"}
"""What a caller may hand over under names of their own."""


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
            names = meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise RequestError(
                f"the chat template is not valid: {_one_line(str(error))}"
            ) from error
        self._names = names - environment.globals.keys() - {"messages", "bos_token", "eos_token"}
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @property
    def reads_tools(self) -> bool:
        """True if the template has a place for tools."""
        return "tools" in self._names

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Tools | None = None,
        **variables: object,
    ) -> str:
        """Return the conversation as text; `variables` are what this template reads besides, such as `enable_thinking`.

        Raises RequestError if the template refuses the messages, or does not read tools or variables that are given.
        """
        if tools:
            check_tools(tools)
            if not self.reads_tools:
                raise RequestError(
                    "the chat template has no place for tools: leave tools out, or "
                    "describe them in a system message"
                )
        for name in variables.keys() - self._names:
            raise RequestError(unknown("variable of the chat template", name, self._names | _GIVEN))
        given = self._tokens | {
            "messages": plain(messages),
            "add_generation_prompt": add_generation_prompt,
            "tools": [dict(tool) for tool in tools] if tools else None,
            "documents": None,
        }
        try:
            return self._template.render(given | variables)
        except RequestError:
            raise
        # A template is a program, and whatever it raises is its own fault or the messages'.
        except Exception as error:
            reason = _one_line(str(error)) or type(error).__name__
            raise RequestError(f"the chat template cannot take these messages: {reason}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _refuse(message: object) -> NoReturn:
    raise RequestError(f"the chat template refuses these messages: {_one_line(str(message))}")


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
