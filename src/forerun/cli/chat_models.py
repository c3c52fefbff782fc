"""The models that `forerun chat` talks with: one of this machine, or with `--url` one of a server of OpenAI's API."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from forerun.cli import console
from forerun.cli.params import SETTABLE, read_setting
from forerun.cli.wrap import WordWrap
from forerun.core.errors import CapacityError, ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import FinishReason
from forerun.engine.stats import SpecStats
from forerun.server.client import Chunk, ChunkStream, Remote

if TYPE_CHECKING:
    from forerun.llm import LLM

WAY_OUT = "/clear forgets the conversation, /save FILE keeps it"
ROUTE = "/chat/completions"
OURS = "forerun"
Message = dict[str, str]


class Unfinished(NamedTuple):
    """An answer that did not end by itself: the messages before it, the token ids of prompt and answer, its text."""

    messages: Sequence[Message]
    token_ids: Sequence[int]
    text: str


class ChatAnswer(NamedTuple):
    """The text of an answer that was printed, and how it ended."""

    text: str
    num_tokens: int
    line: str
    """A line about the answer, to be printed."""
    is_interrupted: bool
    """Whether Ctrl-C ended it."""
    token_ids: Sequence[int] = ()
    """Prompt and answer, if it can go on."""


@dataclass(slots=True)
class LocalModel:
    """A model of this machine, whose cache keeps the turns so far."""

    llm: LLM
    params: SamplingParams
    hint: str = ""
    """Appended to the note that an answer was cut: how to continue it."""
    stats: dict[str, SpecStats] = field(default_factory=dict)
    """Counts of drafted and accepted tokens, by the drafter's name."""
    measured: list[console.Measured] = field(default_factory=list)

    def check(self, messages: Sequence[Message]) -> None:
        """Raise RequestError if the model's template does not take them."""
        self.llm.encode([*messages, {"role": "user", "content": "?"}])

    def title(self) -> str:
        """Name the model, how it samples, its drafter and its context."""
        llm, params = self.llm, self.params
        how = "greedy" if params.is_greedy else f"temperature {params.temperature:g}"
        drafter = llm.drafter_spec.text()
        return f"{llm.path.stem}, {how}, drafter {drafter}, context {llm.max_len} tokens"

    def answer(self, messages: Sequence[Message], unfinished: Unfinished | None) -> ChatAnswer:
        """Print the answer. Raises CapacityError with the ways out where the context is full."""
        prompt = unfinished.token_ids if unfinished else self.llm.encode([*messages])
        try:
            output, measured, is_complete = console.answer(self.llm, prompt, self.params)
        except CapacityError as error:
            raise CapacityError(f"{error}. {WAY_OUT}") from error
        spec = self.llm.drafter_spec
        self.stats.setdefault(spec.text(), SpecStats()).add(measured.stats)
        self.measured.append(measured)
        has_ended = is_complete and output.finish_reason is not FinishReason.LENGTH
        ids, text, line = [*output.token_ids], output.text, measured.line(spec.name)
        line += f"; context {len(prompt) + len(ids):,} of {self.llm.max_len:,}"
        while not has_ended and text.endswith("\ufffd"):  # half a character: it is computed again
            text = self.llm.tokenizer.decode(ids := ids[:-1], is_start=False)
        reply = ChatAnswer(text, measured.tokens, line, not is_complete)
        if has_ended or not (text or unfinished):
            return reply
        if len(prompt) + len(output.token_ids) >= self.llm.max_len:
            full = f"the context of {self.llm.max_len} tokens is full: {WAY_OUT}"
            return reply._replace(line=f"{line}\n{full}")
        why = f"cut at {self.params.max_tokens} tokens (--max-tokens)" if is_complete else "stopped"
        return reply._replace(line=f"{line}\n{why}{self.hint}", token_ids=[*prompt, *ids])

    def drafter(self, spec: str) -> str:
        """Draft in another way, or say how and with what success it is done. The weights stay as they are."""
        name = self.llm.drafter_spec.text()
        if not spec:
            return f"drafter {name}{self._tau(name)}"
        with console.working(f"building {spec}"):
            self.llm = self.llm.with_drafter(spec)
        return f"drafter {self.llm.drafter_spec.text()} (before: {name}{self._tau(name)})"

    def set(self, text: str) -> str:
        """Sample otherwise from now on, or say how it is done."""
        if text:
            name, value = read_setting(text)
            self.params = replace(self.params, **{name: value})
        return _settings({name: getattr(self.params, name) for name in SETTABLE})

    @property
    def repeats(self) -> str:
        """Say why the same messages get the same answer; nothing if they do not."""
        return _repeats(self.params.is_greedy, self.params.seed)

    def summary(self) -> str:
        """Give the speed of all answers, and tokens per pass by drafter."""
        decode_s = sum(one.seconds - (one.ttft_s or 0.0) for one in self.measured)
        after_first = sum(max(one.tokens - 1, 0) for one in self.measured)
        text = f", {after_first / decode_s:.1f} tok/s" if after_first and decode_s else ""
        taus = [f"{name} {stats.tau:.2f}" for name, stats in self.stats.items() if stats.passes]
        return text + (f"; tokens per pass (tau): {', '.join(taus)}" if taus else "")

    def _tau(self, drafter: str) -> str:
        stats = self.stats.get(drafter)
        return f", {stats.tau:.2f} tokens per pass (tau)" if stats and stats.passes else ""


@dataclass(slots=True)
class RemoteModel:
    """One of a server's models. An answer that was cut cannot go on there."""

    remote: Remote
    body: Mapping[str, object]
    """The settings that the user gave; the others are the server's."""
    is_ours: bool = False
    """Whether the server takes `speculative`."""
    drafter_name: str | None = None
    """What /drafter asked for."""

    @classmethod
    def of(cls, remote: Remote, model: str | None, body: Mapping[str, object]) -> RemoteModel:
        """Choose a server's model. Raises RemoteError and ConfigError."""
        entry = remote.model(model)
        return cls(replace(remote, name=str(entry["id"])), body, entry.get("owned_by") == OURS)

    def check(self, messages: Sequence[Message]) -> None:
        """Take any messages: the server says what it cannot read."""

    def title(self) -> str:
        """Name the model and the server."""
        return f"{self.remote.name} at {self.remote.url}"

    def answer(self, messages: Sequence[Message], unfinished: Unfinished | None) -> ChatAnswer:
        """Print the answer as it streams. Raises RemoteError."""
        body: dict[str, object] = {"model": self.remote.name, "messages": messages, **self.body}
        body["stream_options"] = {"include_usage": True}
        if self.drafter_name is not None:
            body["speculative"] = {"drafter": self.drafter_name}
        with self.remote.stream(ROUTE, body) as stream:
            text, times, last, is_complete = _print(stream)
        tokens = int(last.usage.get("completion_tokens", len(times)))  # else a chunk is a token
        line = _line(tokens, times, last.timings)
        if not is_complete:
            line += "\nstopped"
        elif last.finish_reason == "length":
            line += f"\ncut at {tokens} tokens (--max-tokens)"
        return ChatAnswer(text, tokens, line, not is_complete)

    def drafter(self, spec: str) -> str:
        """Ask for another drafter, where the server can, or say which was asked for."""
        if not self.is_ours:
            raise ConfigError("/drafter needs forerun serve; this server does not take it")
        if not spec:
            return f"drafter {self.drafter_name or 'as the server has it'}"
        self.drafter_name = spec
        return f"drafter {spec}: auto, none, or the one that the server has"

    def set(self, text: str) -> str:
        """Ask for another sampling from now on, or say which was asked for."""
        if text:
            name, value = read_setting(text)
            replace(SamplingParams(), **{name: value})  # what is wrong is said at once
            self.body = {**self.body, name: value}
        return _settings({name: self.body[name] for name in SETTABLE if name in self.body})

    @property
    def repeats(self) -> str:
        """Say why the same messages get the same answer, as far as it was asked for here."""
        return _repeats(self.body.get("temperature") == 0, self.body.get("seed"))

    def summary(self) -> str:
        """Add nothing: a server's times are not this machine's."""
        return ""


def _repeats(is_greedy: bool, seed: object) -> str:
    if is_greedy:
        return "greedy sampling gives the same answer again; /set temperature .7 gives others"
    return "" if seed is None else f"seed {seed} gives the same answer again; /set seed changes it"


def _settings(given: Mapping[str, object]) -> str:
    """List settings on a line."""
    return ", ".join(f"{name} {value}" for name, value in given.items()) or "as the server has it"


def _print(stream: ChunkStream) -> tuple[str, list[float], Chunk, bool]:
    """Print a stream's text: the text, the times of its chunks, their last fields, and False if Ctrl-C ended it."""
    text, times, last, is_complete = "", list[float](), Chunk(), True
    wrap = WordWrap.of(sys.stdout)
    try:
        for chunk in stream:
            if chunk.text:
                times.append(time.perf_counter())
                text += chunk.text
                click.echo(wrap.push(chunk.text), nl=False, color=True)
            last = Chunk(
                finish_reason=chunk.finish_reason or last.finish_reason,
                usage=chunk.usage or last.usage,
                timings=chunk.timings or last.timings,
            )
    except KeyboardInterrupt:
        is_complete = False
    finally:
        if text:
            click.echo(wrap.flush(), color=True)
    return text, times, last, is_complete


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
