"""What the API answers: OpenAI's documents, with vLLM's and llama-server's additions.

One `Style` a route says what its objects are called and where the text stands; all else is the same.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.core.repetition import is_much
from forerun.core.types import TokenLogprob
from forerun.engine.outputs import Logprob
from forerun.engine.sequence import SequenceState
from forerun.engine.stats import SpecStats
from forerun.server.parts import Call, CallDelta, Delta, TextDelta
from forerun.server.worker import AsyncRequest

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """What text and log-probabilities need of the tokenizer: a token's text and its bytes."""

    text: Callable[[int], str]
    nbytes: Callable[[int], bytes | None]


@dataclass(frozen=True, slots=True)
class Style:
    """How a route writes its answers."""

    prefix: str
    whole: str
    chunk: str
    is_chat: bool

    def choice(
        self, index: int, text: str, calls: Sequence[Call], logprobs: object, reason: str | None
    ) -> Document:
        """A whole choice."""
        message: Document = {"role": "assistant", "content": text, "refusal": None}
        if calls:
            message["content"] = text or None
            message["tool_calls"] = [
                _call(one.name, one.arguments, id=one.id, type="function") for one in calls
            ]
        said = {"message": message} if self.is_chat else {"text": text}
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}

    def delta(
        self, index: int, deltas: Sequence[Delta], logprobs: object, reason: str | None
    ) -> Document:
        """What a chunk adds to a choice."""
        text = "".join(one.text for one in deltas if isinstance(one, TextDelta))
        said: Document = {"text": text}
        if self.is_chat:
            more = _call_deltas(one for one in deltas if isinstance(one, CallDelta))
            content = {"content": text} if text else {}
            said = {"delta": content | ({"tool_calls": more} if more else {})}
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, found: Sequence[TokenLogprob], words: Words, offset: int) -> Document:
        """Log-probabilities of some tokens; `offset` is where their text begins in the answer."""
        if self.is_chat:
            return {"content": [_chat_logprob(one, words) for one in found]}
        texts = [words.text(one.token_id) for one in found]
        starts = [offset + sum(map(len, texts[:i])) for i in range(len(texts))]
        tops = [{words.text(token): value for token, value in one.top} for one in found]
        for one, text, top in zip(found, texts, tops, strict=True):
            top.setdefault(text, one.logprob)
        return {
            "tokens": texts,
            "token_logprobs": [one.logprob for one in found],
            "top_logprobs": tops,
            "text_offset": starts,
        }


CHAT = Style("chatcmpl-", "chat.completion", "chat.completion.chunk", is_chat=True)
COMPLETION = Style("cmpl-", "text_completion", "text_completion", is_chat=False)


def _call(name: str, arguments: str, **others: object) -> Document:
    return {**others, "function": {"name": name, "arguments": arguments}}


def _call_deltas(deltas: Iterable[CallDelta]) -> list[Document]:
    """One entry a call: clients do not look for a second one in a chunk."""
    found: dict[int, Document] = {}
    for one in deltas:
        if one.index in found:
            found[one.index]["function"]["arguments"] += one.arguments
        elif one.name is None:
            found[one.index] = {"index": one.index, "function": {"arguments": one.arguments}}
        else:
            call = _call(one.name, one.arguments, index=one.index, id=one.id, type="function")
            found[one.index] = call
    return [*found.values()]


def _chat_logprob(one: TokenLogprob, words: Words) -> Document:
    def entry(token: int, value: float) -> Document:
        spelled = words.nbytes(token)
        return {
            "token": words.text(token),
            "logprob": value,
            "bytes": None if spelled is None else [*spelled],
        }

    top = [entry(token, value) for token, value in one.top]
    return entry(one.token_id, one.logprob) | {"top_logprobs": top}


@dataclass(slots=True)
class DocumentHead:
    """The fields that every document of an answer begins with."""

    style: Style
    model: str
    version: str
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.id = self.style.prefix + uuid.uuid4().hex

    def whole(self, choices: list[Document]) -> Document:
        """The document of a whole answer."""
        return self._document(self.style.whole, choices)

    def chunk(self, choices: list[Document]) -> Document:
        """The document of a chunk."""
        return self._document(self.style.chunk, choices)

    def _document(self, kind: str, choices: list[Document]) -> Document:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"forerun-{self.version}",
            "choices": choices,
        }


def usage(request: AsyncRequest) -> Document:
    """Tokens read and written so far; a prompt counts once, whatever n is."""
    firsts = [handle.runs[0].seq for handle in request.handles]
    num_prompt = sum(seq.num_prompt for seq in firsts)
    num_new = sum(len(run.seq.tokens) - run.seq.num_prompt for run in _runs(request))
    found: Document = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        "prompt_tokens_details": {"cached_tokens": sum(seq.num_reused for seq in firsts)},
    }
    predictions = [run.prediction for run in _runs(request) if run.prediction is not None]
    if predictions:
        found["completion_tokens_details"] = {
            "accepted_prediction_tokens": sum(one.accepted for one in predictions),
            "rejected_prediction_tokens": sum(one.rejected for one in predictions),
        }
    return found


def timings(request: AsyncRequest, end_s: float, drafter: str) -> Document:
    """llama-server's figures of a request that has ended at `end_s`, and what the drafter of that name guessed.

    The prompt's time is the time to the first token, waiting included. The answer's time begins with that token, and
    `predicted_per_second` counts those after it: the speed of decoding.
    """
    counts, runs = usage(request), _runs(request)
    stats = SpecStats.total(run.stats for run in runs)
    firsts = [run.first_token_s for run in runs if run.first_token_s is not None]
    first_s = min(firsts, default=end_s)
    cached, num_new = counts["prompt_tokens_details"]["cached_tokens"], counts["completion_tokens"]
    num_read, num_later = counts["prompt_tokens"] - cached, num_new - len(firsts)
    prompt_ms = round((first_s - request.start_s) * 1e3, 3)
    predicted_ms = round((end_s - first_s) * 1e3, 3)
    most = request.handles[0].runs[0].seq.params.max_draft
    return {
        "drafter": "none" if most == 0 else drafter,
        **({} if most is None else {"max_draft": most}),
        "cache_n": cached,
        "prompt_n": num_read,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / num_read if num_read else 0.0,
        "prompt_per_second": _rate(num_read, prompt_ms),
        "predicted_n": num_new,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / num_later if num_later else 0.0,
        "predicted_per_second": _rate(num_later, predicted_ms),
        "draft_n": stats.drafted,
        "draft_n_accepted": stats.accepted,
        "repeated_n": request.num_repeated,
        "repeats_itself": is_much(request.num_repeated, num_new),
        "passes": stats.passes,
        "tokens_per_pass": round(stats.tau, 3),
    }


def prompt_logprobs(found: Sequence[Mapping[int, Logprob] | None]) -> list[Document | None]:
    """The prompt's log-probabilities in vLLM's form."""
    return [None if one is None else _by_id(one) for one in found]


def _by_id(found: Mapping[int, Logprob]) -> Document:
    return {str(token): dataclasses.asdict(entry) for token, entry in found.items()}


def _runs(request: AsyncRequest) -> list[SequenceState]:
    return [run for handle in request.handles for run in handle.runs]


def _rate(count: int, ms: float) -> float:
    return count / ms * 1e3 if ms > 0 else 0.0
