"""The answers of a chat, split into what the model thinks, says and calls."""

from __future__ import annotations

from dataclasses import replace

from forerun.core.types import FinishReason
from forerun.engine.outputs import CompletionOutput, RequestOutput
from forerun.text.messages import Tools
from forerun.text.parsing.calls import schemas_of
from forerun.text.parsing.forms import form_of, has_special_marks
from forerun.text.parsing.message import AnswerMessage
from forerun.text.tokenizer import Tokenizer


def parsed(
    tokenizer: Tokenizer,
    output: RequestOutput,
    *,
    chat_template: str | None = None,
    tools: Tools | None = None,
) -> RequestOutput:
    """Return an output whose completions have a `message`, read in the form of the model's family.

    `chat_template` is the one that took the place of the model's, if one did.
    """
    form = form_of(chat_template or tokenizer.chat_template, tokenizer.encoder.token_to_id)
    shows_marks = has_special_marks(form, tokenizer)
    schemas = schemas_of(tools or ())

    def message(completion: CompletionOutput) -> AnswerMessage:
        text = completion.text
        if shows_marks:  # they are no part of the text
            ids = [*completion.token_ids]
            while ids and ids[-1] in tokenizer.eos_ids:
                ids.pop()
            text = tokenizer.decode(ids, skip_special=False, is_start=False)
            if isinstance(completion.stop_reason, str):
                behind = form.stop_behind(output.prompt or "")
                closes = () if behind is None else behind.closes
                start = max((text.rfind(mark) for mark in closes), default=0)
                text = text[: text.find(completion.stop_reason, max(start, 0))]
        is_cut = completion.finish_reason is FinishReason.LENGTH
        parser = form.parser(output.prompt or "", tools=schemas)
        return AnswerMessage.of(text, parser, is_cut=is_cut)

    return replace(
        output, outputs=tuple(replace(one, message=message(one)) for one in output.outputs)
    )
