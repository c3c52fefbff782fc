"""What a chat asks of its answers besides sampling: calls of tools, a format; the same in Python and of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from forerun.compat.tools import Tool, Toolbox, call_grammar
from forerun.core.errors import RequestError, short_repr
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.text.chat_template import ChatTemplate
from forerun.text.messages import Tools, check_tools
from forerun.text.parsing.forms import form_of
from forerun.text.parsing.thought import ReasoningTags
from forerun.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The tools of a chat, which of them must be called, and the format of what is said."""

    toolbox: Toolbox
    format: StructuredOutputsParams | None = None

    @classmethod
    def of(cls, tools: Tools | None, choice: object, parallel: bool | None, form: object) -> Self:
        """Read them as OpenAI's chat completions write them; a pydantic class is a form too. Raises RequestError."""
        if tools:
            check_tools(tools)
        if hasattr(form, "model_json_schema"):
            own: Any = form  # a pydantic class
            return cls(Toolbox.of(tools, choice, parallel), StructuredOutputsParams(json=own))
        if not isinstance(form, Mapping | None):
            what = '{"type": "json_schema", "json_schema": {"schema": ...}}'
            message = f"response_format must be an object like {what}, got {short_repr(form)}"
            raise RequestError(message, option="response_format")
        return cls(Toolbox.of(tools, choice, parallel), response_format(form) if form else None)

    @property
    def tools(self) -> Sequence[Tool] | None:
        """The tools that a template is told of."""
        return self.toolbox.tools or None

    def params(
        self,
        given: SamplingParams,
        prompt: str,
        max_len: int,
        tokenizer: Tokenizer,
        chat_template: str | None,
    ) -> SamplingParams:
        """Return the parameters with the form of the answer to a prompt of a context of `max_len`.

        Raises RequestError for two forms.
        """
        own = chat_template or tokenizer.chat_template
        family = form_of(own, tokenizer.encoder.token_to_id)
        given = stopped_behind_thought(given, prompt, tokenizer, chat_template)
        if not self.toolbox.required and self.format is None:
            return given
        form = given.structured_outputs
        if form is not None and self.format is not None:
            raise RequestError("give response_format or structured_outputs, not both")
        form = form or self.format
        if self.toolbox.tools:
            given_one = chat_template and tokenizer.template(ChatTemplate, chat_template)
            reads_tools = (given_one or tokenizer).reads_tools
            control = tokenizer.special_texts
            form = self.toolbox.form(form, call_grammar(family, control, reads_tools=reads_tools))
        if (begun := family.begun(prompt)) is not None:
            form = bounded(form, begun, None, given.max_tokens or max_len)
        return replace(given, structured_outputs=form)


def stopped_behind_thought(
    given: SamplingParams, prompt: str, tokenizer: Tokenizer, chat_template: str | None = None
) -> SamplingParams:
    """Return the parameters with stop strings that count from the end of an answer's thought on, if it may have one."""
    if not given.stop or given.stop_behind is not None:
        return given
    form = form_of(chat_template or tokenizer.chat_template, tokenizer.encoder.token_to_id)
    return replace(given, stop_behind=form.stop_behind(prompt))


def response_format(given: Mapping[str, Any]) -> StructuredOutputsParams | None:
    """Read OpenAI's `response_format`; a schema beside `json_object` is llama-server's way. Raises RequestError."""
    kind, field, schema = given.get("type"), "response_format", given.get("schema")
    if kind == "text":
        return None
    if kind not in ("json_schema", "json_object"):
        raise RequestError(
            f"{field}.type must be text, json_object or json_schema, got {short_repr(kind)}",
            option=field,
        )
    if kind == "json_schema":
        inner, field = given.get("json_schema"), f"{field}.json_schema.schema"
        schema = inner.get("schema") if isinstance(inner, Mapping) else schema
        if schema is None:
            raise RequestError(f"{field} is missing: it must be a JSON schema", option=field)
    try:
        if schema is None:
            return StructuredOutputsParams(json_object=True)
        return StructuredOutputsParams(json=schema)
    except RequestError as error:
        raise RequestError(str(error), option=field) from error


def bounded(
    form: StructuredOutputsParams | None, begun: ReasoningTags, budget: int | None, most: int
) -> StructuredOutputsParams | None:
    """Put the form of an answer, if it has one, behind a thought that its prompt has begun and that has a bound.

    Without a budget of tokens, a thought before a form has half of the answer's `most`. A thought without a mark at its
    beginning, gpt-oss', goes before calls and texts alike: no bound alone ends it.
    """
    bound = budget or most // 2
    if form is not None:
        return replace(form, after=form.after or begun.close, max_before=bound)
    is_bounded = budget and begun.open
    return StructuredOutputsParams(after=begun.close, max_before=budget) if is_bounded else None
