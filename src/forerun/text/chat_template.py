"""Chat templates: Jinja programs in model files that write conversations as the model knows them.

They are code from the model's file, so they run in Jinja's sandbox. They see what they see in the
transformers library, where most are written: its whitespace rules, `raise_exception`, `strftime_now`, `tojson`,
`break` and `continue`, and `generation` blocks, which mark text for training and do nothing here. The sandbox bounds
what they see, not their time and memory: a server renders them in processes of their own (`template_process.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.core.errors import RequestError, unknown
from forerun.text.adaptations import adapted
from forerun.text.content import ROLES, probed_forms, written_in
from forerun.text.messages import THOUGHTS, Message, Tools, check_tools, plain
from forerun.text.parsing.forms import form_of

RESERVED = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "chat_template", "bos_token", "eos_token"),
        *("self", "super", "loop", "caller", "varargs", "kwargs"),  # Jinja's
    }
)
"""Names that are never a caller's variables, beside Jinja's globals."""
THINKING_SWITCHES = ("enable_thinking", "thinking")
"""What templates call the variable that says whether the model thinks."""
MAX_NBYTES = 32 << 20
"""Bytes of a conversation that a template writes, at most."""


def check_syntax(source: str) -> None:
    """Raise RequestError for a template that is not valid Jinja; nothing of it is run, nor constants computed."""
    environment = _environment()
    with _explained("is not valid"):
        tree = environment.parse(source)
        for kind, known in ((nodes.Filter, environment.filters), (nodes.Test, environment.tests)):
            for node in tree.find_all(kind):
                if node.name not in known:
                    raise jinja2.TemplateAssertionError(
                        f"no {kind.__name__.lower()} named {node.name!r}", node.lineno
                    )


def with_tool_use(default: str, tool_use: str | None) -> str:
    """Return one template of two: the second is for conversations with tools."""
    if tool_use is None:
        return default
    one, other = (
        f"{{{{ '' }}}}{source.removesuffix(chr(10))}{{{{ '' }}}}" for source in (tool_use, default)
    )
    return f"{{% if tools %}}{one}{{% else %}}{other}{{% endif %}}"


class ChatTemplate:
    """A compiled template. Raises RequestError if it is not valid Jinja."""

    def __init__(self, source: str, bos_token: str, eos_token: str) -> None:
        environment = _environment()
        with _explained("is not valid"):
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        self.reads_tools = "tools" in names
        """True if the template has a place for tools."""
        self._source = source
        self._writes_calls = None if self.reads_tools else True
        """Whether it writes earlier calls; None: not known yet."""
        self._thoughts = [name for name in THOUGHTS if name in source]
        """What it calls earlier thoughts, as far as it may read any."""
        self._own = RESERVED | environment.globals.keys()
        self.names = names - self._own
        """What it reads besides, such as `enable_thinking`."""
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    @cached_property
    def content_forms(self) -> Mapping[str, str | None]:
        """By role: whether its content is read as `text` or as `parts`; None where it arrives as neither.

        Found by rendering a marked word, once; a template that nowhere names a content is taken as it is.
        """
        if "content" not in self._source:
            return dict.fromkeys(ROLES, "text")
        variables = {**self._tokens, "add_generation_prompt": False, "documents": None}
        return probed_forms(lambda messages: self._rendered(messages, None, variables))

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Tools | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the conversation as text; `variables` are what this template reads besides, such as `enable_thinking`.

        Raises RequestError if the template refuses the messages, does not read tools or variables that are given, or
        a variable has a name of the renderer's own, such as `messages`.
        """
        if tools:
            check_tools(tools)
            if not self.reads_tools:
                raise RequestError(
                    "the chat template has no place for tools: leave tools out, or "
                    "describe them in a system message"
                )
        variables = variables or {}
        for name in sorted(variables.keys() - self.names):
            raise RequestError(self._refused(name), option="chat_template_kwargs")
        plain_messages, given = plain(messages), [dict(tool) for tool in tools] if tools else None
        for turn in plain_messages:
            if (thought := turn.get(THOUGHTS[0])) is not None:
                turn |= dict.fromkeys(self._thoughts, thought)
        all_variables = {
            **self._tokens,
            "add_generation_prompt": add_generation_prompt,
            "documents": None,
            **variables,
        }
        try:
            text = self._written(plain_messages, given, all_variables)
            if self._leaves_calls_out(text, plain_messages, given, all_variables):
                with_calls = [*map(self._with_calls, plain_messages)]
                return self._written(with_calls, given, all_variables)
            return text
        except RequestError:
            for other in adapted(plain_messages, given):
                with suppress(RequestError):
                    return self._written(*other, all_variables)
            raise

    def _leaves_calls_out(self, text: str, messages: list[dict[str, Any]], *rest: Any) -> bool:
        """Tell whether a template that reads tools writes earlier calls nowhere: a conversation is the same without."""
        if self._writes_calls is None and any(turn.get("tool_calls") for turn in messages):
            bare = [{k: v for k, v in one.items() if k != "tool_calls"} for one in messages]
            try:
                self._writes_calls = self._written(bare, *rest) != text
            except RequestError:
                self._writes_calls = True
        return self._writes_calls is False

    def _with_calls(self, turn: dict[str, object]) -> dict[str, object]:
        """Write a turn's calls into its text, as the family writes them."""
        calls: Any = turn.get("tool_calls")
        if not calls:
            return turn
        functions = [call["function"] for call in calls]
        text = form_of(self._source).spelled(
            [(str(one.get("name")), one["arguments"]) for one in functions]
        )
        content = "\n".join(filter(None, (str(turn["content"]), text)))
        return {name: value for name, value in turn.items() if name != "tool_calls"} | {
            "content": content
        }

    def _written(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Tools | None,
        variables: Mapping[str, object],
    ) -> str:
        """Write a conversation, its contents as the template reads them. Raises RequestError where words are lost."""
        forms = self.content_forms
        return written_in(forms, messages, lambda said: self._rendered(said, tools, variables))

    def _rendered(
        self, messages: Sequence[Message], tools: Tools | None, variables: Mapping[str, object]
    ) -> str:
        with _explained("cannot take these messages"):
            return "".join(
                _bounded(
                    self._template.generate({"messages": messages, "tools": tools, **variables})
                )
            )

    def _refused(self, name: str) -> str:
        """Say why there is no variable of this name."""
        if name in self._own:
            allowed = ", ".join(sorted(self.names)) or "none"
            return f"chat_template_kwargs must be variables of the template, not {name!r} (allowed: {allowed})"
        return unknown("variable of the chat template", name, self.names, RESERVED)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[LoopControlExtension, _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Make RequestErrors of what a template raises: it is a program, and that is its own fault or the messages'."""
    try:
        yield
    except (RequestError, MemoryError):
        raise
    except Exception as error:
        reason = _one_line(str(error)) or type(error).__name__
        raise RequestError(f"the chat template {what}: {reason}") from error


def _bounded(parts: Iterable[str]) -> Iterator[str]:
    room = MAX_NBYTES
    for part in parts:
        room -= len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass"))
        if room < 0:
            raise RequestError(f"the chat template writes more than {MAX_NBYTES >> 20} MiB")
        yield part


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _refuse(message: object) -> NoReturn:
    raise RequestError(f"the chat template refuses these messages: {_one_line(str(message))}")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML and sorts keys.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` is its body."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
