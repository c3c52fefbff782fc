"""The models that `forerun chat` talks with: one of this machine, or with `--url` one of a server of OpenAI's API."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from forerun.cli import console
from forerun.core.errors import CapacityError, ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import Event, FinishReason, TextPiece
from forerun.engine.stats import SpecStats
from forerun.server.client import Chunk, ChunkStream, Remote

if TYPE_CHECKING:
    from forerun.llm import LLM

WAY_OUT = "/clear forgets the conversation, /save FILE keeps it"
Message = dict[str, str]


class ChatAnswer(NamedTuple):
    """An answer that was printed."""

    text: str
    num_tokens: int
    line: str
    """About the answer, to be printed."""
    is_complete: bool
    """False if Ctrl-C ended it."""
    token_ids: Sequence[int] = ()
    """Prompt and answer, if it can go on."""


class ChatModel(Protocol):
    """What a conversation is held with."""

    def title(self) -> str:
        """Name it for people."""

    def check(self, messages: Sequence[Message]) -> None:
        """Raise RequestError for messages that it cannot read."""

    def answer(self, messages: Sequence[Message], begun: Sequence[int] = ()) -> ChatAnswer:
        """Print the answer as it comes, or more of one whose prompt and tokens are given. Raises ForerunError."""

    def drafter(self, spec: str) -> str:
        """Draft in another way, or say how it is done."""

    def summary(self) -> str:
        """Say what there is to say of all answers besides their number; begins with a comma."""


@dataclass(slots=True)
class LocalModel:
    """A model of this machine, whose cache keeps the turns so far."""

    llm: LLM
    params: SamplingParams
    hint: str = ""
    """Appended to the note that an answer was cut: how to continue it."""
    stats: dict[str, SpecStats] = field(default_factory=dict)
    """Counts of drafted and accepted tokens, by the drafter's name."""
    decoded: int = 0
    decode_s: float = 0.0
    """Tokens after the first of each answer, and their time."""

    def title(self) -> str:
        """Name the model, how it samples, its drafter and its context."""
        llm, params = self.llm, self.params
        how = "greedy" if params.is_greedy else f"temperature {params.temperature:g}"
        drafter = llm.drafter_spec.text()
        return f"{llm.path.stem}, {how}, drafter {drafter}, context {llm.max_len} tokens"

    def hints(self) -> list[str]:
        """Say what is kept on disk, and which drafter could be fetched."""
        disk = self.llm.engine.cache.disk
        return [hint for hint in (disk and disk.described(), self._drafter_hint()) if hint]

    def _drafter_hint(self) -> str | None:
        """Name a published drafter that could be fetched, where `auto` found none on this disk."""
        from huggingface_hub import constants

        from forerun.hub.published import for_model

        if not self.llm.drafter_spec.is_auto or constants.HF_HUB_OFFLINE:
            return None
        found = for_model(self.llm.target().identity)
        if not found:
            return None
        return f"forerun pull {self.llm.config.model} --drafter fetches {found[0]}, which drafts for this model"

    def check(self, messages: Sequence[Message]) -> None:
        """Raise RequestError if the model's template does not take them."""
        self.llm.encode([*messages, {"role": "user", "content": "?"}])

    def answer(self, messages: Sequence[Message], begun: Sequence[int] = ()) -> ChatAnswer:
        """Print the answer. Raises CapacityError with the ways out where the context is full."""
        prompt, max_len, spec = (
            begun or self.llm.encode([*messages]),
            self.llm.max_len,
            self.llm.drafter_spec,
        )
        try:
            output, measured, is_complete = console.answer(self.llm, prompt, self.params)
        except CapacityError as error:
            raise CapacityError(f"{error}. {WAY_OUT}") from error
        self.stats.setdefault(spec.text(), SpecStats()).add(measured.stats)
        self.decoded += max(measured.tokens - 1, 0)
        self.decode_s += measured.seconds - (measured.ttft_s or 0.0)
        ids, text = [*output.token_ids], output.text
        line = f"{measured.line(spec.name)}; context {len(prompt) + len(ids):,} of {max_len:,}"
        is_full = len(prompt) + len(ids) >= max_len
        has_ended = is_complete and output.finish_reason is not FinishReason.LENGTH
        while not has_ended and text.endswith("\ufffd"):  # half a character: it is computed again
            text = self.llm.tokenizer.decode(ids := ids[:-1], is_start=False)
        rest: Sequence[int] = ()
        if not has_ended and (text or begun):
            if is_full:
                line += f"\nthe context of {max_len} tokens is full: {WAY_OUT}"
            else:
                why = f"cut at {self.params.max_tokens} tokens (--max-tokens)"
                line += f"\n{why if is_complete else 'stopped'}{self.hint}"
                rest = [*prompt, *ids]
        return ChatAnswer(text, measured.tokens, line, is_complete, rest)

    def drafter(self, spec: str) -> str:
        """Draft in another way, or say how and with what success it is done. The weights stay as they are."""
        name = self.llm.drafter_spec.text()
        stats = self.stats.get(name)
        tau = f", {stats.tau:.2f} tokens per pass (tau)" if stats and stats.passes else ""
        if not spec:
            return f"drafter {name}{tau}"
        with console.working(f"building {spec}"):
            self.llm = self.llm.with_drafter(spec)
        return f"drafter {self.llm.drafter_spec.text()} (before: {name}{tau})"

    def summary(self) -> str:
        """Give the speed of all answers, and tokens per pass by drafter."""
        speed = f", {self.decoded / self.decode_s:.1f} tok/s" if self.decoded else ""
        taus = [f"{name} {stats.tau:.2f}" for name, stats in self.stats.items() if stats.passes]
        return speed + (f"; tokens per pass (tau): {', '.join(taus)}" if taus else "")


@dataclass(slots=True)
class RemoteModel:
    """One of a server's models. An answer that was cut cannot go on there."""

    remote: Remote
    body: dict[str, object]
    """The settings that the user gave; the others are the server's."""
    is_ours: bool = False
    """Whether the server takes `speculative`."""

    @classmethod
    def of(cls, remote: Remote, model: str | None, body: Mapping[str, object]) -> RemoteModel:
        """Choose a server's model. Raises RemoteError and ConfigError."""
        entry = remote.model(model)
        name = str(entry["id"])
        asked = {"model": name, **body, "stream_options": {"include_usage": True}}
        return cls(replace(remote, name=name), asked, entry.get("owned_by") == "forerun")

    def title(self) -> str:
        """Name the model and the server."""
        return f"{self.remote.name} at {self.remote.url}"

    def check(self, messages: Sequence[Message]) -> None:
        """Take any messages: the server says what it cannot read."""

    def answer(self, messages: Sequence[Message], begun: Sequence[int] = ()) -> ChatAnswer:
        """Print the answer as it streams. Raises RemoteError."""
        chunks, times = list[Chunk](), list[float]()

        def events(stream: ChunkStream) -> Iterator[Event]:
            for chunk in stream:
                chunks.append(chunk)
                if chunk.text:
                    times.append(time.perf_counter())
                    yield Event(0, (), (TextPiece(chunk.text, False),))

        with self.remote.stream("/chat/completions", {**self.body, "messages": messages}) as stream:
            is_complete = console.show(events(stream))
        usage = next((each.usage for each in reversed(chunks) if each.usage), {})
        timings = next((each.timings for each in reversed(chunks) if each.timings), {})
        tokens = int(usage.get("completion_tokens", len(times)))  # else a chunk is a token
        line = _line(tokens, times, timings)
        if not is_complete:
            line += "\nstopped"
        elif any(each.finish_reason == "length" for each in chunks):
            line += f"\ncut at {tokens} tokens (--max-tokens)"
        return ChatAnswer("".join(each.text for each in chunks), tokens, line, is_complete)

    def drafter(self, spec: str) -> str:
        """Ask for another drafter, where the server can, or say which was asked for."""
        if not self.is_ours:
            raise ConfigError("/drafter needs forerun serve; this server does not support it")
        if spec:
            self.body["speculative"] = {"drafter": spec}
            return f"drafter {spec}: auto, none, or the one that the server has"
        asked: Any = self.body.get("speculative", {"drafter": "as the server has it"})
        return f"drafter {asked['drafter']}"

    def summary(self) -> str:
        """Add nothing: a server's times are not this machine's."""
        return ""


def _line(tokens: int, times: Sequence[float], timings: Mapping[str, Any]) -> str:
    """Write a line about an answer from the server's timings, or by the clock."""
    lasted_s = times[-1] - times[0] if times else 0.0
    speed = timings.get("predicted_per_second") or ((tokens - 1) / lasted_s if lasted_s else 0.0)
    text = f"{tokens} tokens, {speed:.1f} tok/s"
    if drafted := timings.get("draft_n"):
        accepted, tau = timings.get("draft_n_accepted", 0), timings.get("tokens_per_pass")
        text += f"; {timings.get('drafter', 'drafter')}: "
        text += f"{console.tokens_per_pass(tau)}, " if tau else ""
        text += f"accepted {accepted} of {drafted} drafted ({accepted / drafted:.0%})"
    return text
