"""What a request gives back, under vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from forerun.core.types import FinishReason, TokenLogprob
from forerun.engine.sequence import SequenceState
from forerun.engine.stats import SpecStats
from forerun.text.messages import Tools
from forerun.text.parsing.calls import schemas_of
from forerun.text.parsing.forms import form_of, has_special_marks
from forerun.text.parsing.message import AnswerMessage, ToolCall
from forerun.text.tokenizer import Tokenizer

TokenText = Callable[[int], str | None]
"""The text of a token by itself, if there is a tokenizer."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability by the raw logits, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None


Logprobs = dict[int, Logprob]
"""By token id: the token that stands there, then the likeliest ones in their order."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One completion of a prompt. `stats` counts what was drafted, accepted and emitted for it."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: list[Logprobs] | None
    """One entry a token, if they were asked for."""
    stats: SpecStats
    ttft_s: float | None
    stop_reason: int | str | None = None
    """The stop string, or the token of `stop_token_ids`, that ended it."""
    message: AnswerMessage | None = None
    """What it thinks, says and calls, of `chat`."""

    @classmethod
    def of(cls, index: int, run: SequenceState, token_text: TokenText) -> CompletionOutput:
        """Return the output of a sequence so far."""
        wanted = run.seq.params.logprobs is not None
        return cls(
            index=index,
            text=run.text,
            token_ids=tuple(run.seq.generated),
            finish_reason=run.seq.finish_reason,
            logprobs=by_token(run.logprobs, token_text) if wanted else None,
            stats=run.stats,
            ttft_s=run.ttft_s,
            stop_reason=run.stops.stop_reason,
        )

    @property
    def reasoning(self) -> str | None:
        """What it thinks before it says anything, of `chat`."""
        return self.message.reasoning if self.message else None

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools it calls, of `chat` with tools, as OpenAI writes them: `tool_calls[0].function.name`."""
        return self.message.tool_calls if self.message else []

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the tokens' log-probabilities, if they were asked for."""
        if self.logprobs is None:
            return None
        pairs = zip(self.token_ids, self.logprobs, strict=False)
        return sum(ranked[token].logprob for token, ranked in pairs)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its `n` completions. `prompt` is its text, None for a prompt that was given as token ids.

    `prompt_logprobs` has an entry for every token of the prompt, None for the first, if they were asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Logprobs | None] | None
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values the cache held already when the first completion began."""


def by_token(emitted: Iterable[TokenLogprob], token_text: TokenText) -> list[Logprobs]:
    """Return the log-probabilities of some positions, as vLLM gives them."""
    positions = []
    for chosen in emitted:
        ranked = {token: (value, rank) for rank, (token, value) in enumerate(chosen.top, 1)}
        entries = {chosen.token_id: (chosen.logprob, chosen.rank)} | ranked
        positions.append(
            {
                token: Logprob(*entry, decoded_token=token_text(token))
                for token, entry in entries.items()
            }
        )
    return positions


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
