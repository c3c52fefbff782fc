"""The conversation of `forerun chat`: its messages, the model that answers, and what the answers took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forerun.cli import _console as console
from forerun.core.errors import CapacityError, ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import FinishReason
from forerun.engine.stats import SpecStats
from forerun.llm import LLM

Message = dict[str, str]

WAY_OUT = "/clear forgets the conversation, /save FILE keeps it"


@dataclass(frozen=True, slots=True)
class Cut:
    """An answer that did not end by itself: what was asked, and its tokens after the prompt's."""

    asked: Sequence[Message]
    token_ids: Sequence[int]
    text: str


@dataclass(slots=True)
class Conversation:
    """Messages and answers. Raises ForerunError for what cannot be done; the conversation is then as before."""

    llm: LLM
    params: SamplingParams
    hint: str = ""
    """How to go on, behind the note that an answer was cut."""
    messages: list[Message] = field(default_factory=list)
    cut: Cut | None = None
    """The last answer, if it can go on."""
    was_stopped: bool = False
    """Whether Ctrl-C ended the last answer."""
    stats: dict[str, SpecStats] = field(default_factory=dict)
    """By drafter."""
    answers: list[console.Measured] = field(default_factory=list)
    file: Path | None = None
    """Where it was saved or loaded, which saving again may overwrite."""

    def start(self, system: str | None) -> None:
        """Check that the model can talk, and with that system message. Raises RequestError."""
        opening = [{"role": "system", "content": system}] if system else []
        self._replace(opening)

    def title(self) -> str:
        """What answers, and how."""
        llm, params = self.llm, self.params
        how = "greedy" if params.is_greedy else f"temperature {params.temperature:g}"
        drafter = llm.drafter_spec.text()
        return f"{llm.path.stem}, {how}, drafter {drafter}, context {llm.max_len} tokens"

    def say(self, text: str) -> str:
        """Print the answer to a message; a line about it. A message without an answer is forgotten."""
        asked = [*self.messages, {"role": "user", "content": text}]
        return self._answer(asked, self.llm.encode(asked), "")

    def go_on(self) -> str:
        """Print more of an answer that was cut; a line about it."""
        if self.cut is None:
            raise ConfigError("the last answer has ended by itself")
        return self._answer(self.cut.asked, self.cut.token_ids, self.cut.text)

    def clear(self) -> str:
        """Forget all but the system message."""
        self.messages = self.messages[:1] if self._has_system else []
        self.cut = None
        return "the conversation is forgotten"

    def system(self, text: str) -> str:
        """Set the system message, or show it if there is no text. What was said stays."""
        old = self.messages[0]["content"] if self._has_system else None
        if not text:
            return f"system message: {old}" if old else "there is no system message"
        rest = self.messages[1:] if old is not None else self.messages
        self._replace([{"role": "system", "content": text}, *rest])
        return "the system message is set"

    def drafter(self, spec: str) -> str:
        """Draft in another way, or say how and with what success it is done. The weights stay as they are."""
        name = self.llm.drafter_spec.text()
        if not spec:
            return f"drafter {name}" + self._tau(name)
        with console.working(f"building {spec}"):
            self.llm = self.llm.with_drafter(spec)
        return f"drafter {self.llm.drafter_spec.text()} (before: {name}{self._tau(name)})"

    def save(self, name: str) -> str:
        """Write the messages to a file. Another's file is not overwritten."""
        path = Path(name).expanduser()
        if path.exists() and path != self.file:
            raise ConfigError(f"{path} exists: name another file")
        try:
            path.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", "utf-8")
        except OSError as error:
            raise ConfigError(f"cannot save: {error}") from error
        self.file = path
        return f"saved {_count(len(self.messages), 'message')} to {path}"

    def load(self, name: str) -> str:
        """Take the messages of a file instead of those that are here."""
        path = Path(name).expanduser()
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot load: {error}") from error
        if not isinstance(found, list) or not all(map(_is_message, found)):
            raise ConfigError(f"{path} is no list of messages with role and content")
        self._replace(found)
        self.file = path
        return f"loaded {_count(len(found), 'message')}"

    def summary(self) -> str:
        """One line about all answers."""
        tokens = sum(one.tokens for one in self.answers)
        decode_s = sum(one.seconds - (one.ttft_s or 0.0) for one in self.answers)
        after_first = sum(max(one.tokens - 1, 0) for one in self.answers)
        text = f"{_count(len(self.answers), 'answer')}, {tokens} tokens"
        if after_first and decode_s:
            text += f", {after_first / decode_s:.1f} tok/s"
        taus = [f"{name} {stats.tau:.2f}" for name, stats in self.stats.items() if stats.passes]
        return text + (f"; tokens per pass (tau): {', '.join(taus)}" if taus else "")

    @property
    def _has_system(self) -> bool:
        return bool(self.messages) and self.messages[0]["role"] == "system"

    def _answer(self, asked: Sequence[Message], prompt: Sequence[int], before: str) -> str:
        try:
            given, measured, is_whole = console.answer(self.llm, prompt, self.params)
        except CapacityError as error:
            raise CapacityError(f"{error}. {WAY_OUT}") from error
        name = self.llm.drafter_spec
        self.stats.setdefault(name.text(), SpecStats()).add(measured.stats)
        self.answers.append(measured)
        self.was_stopped = not is_whole
        has_ended = is_whole and given.finish_reason is not FinishReason.LENGTH
        ids, text = [*given.token_ids], given.text
        while not has_ended and text.endswith("\ufffd"):  # half a character: it is computed again
            text = self.llm.tokenizer.decode(ids := ids[:-1], is_start=False)
        self.cut = None
        if text or before:
            self.messages = [*asked, {"role": "assistant", "content": before + text}]
        if has_ended or not (text or before):
            return measured.line(name.name)
        if len(prompt) + len(given.token_ids) >= self.llm.max_len:
            why = f"the context of {self.llm.max_len} tokens is full: {WAY_OUT}"
        else:
            self.cut = Cut(asked, [*prompt, *ids], before + text)
            why = (
                f"cut at {self.params.max_tokens} tokens (--max-tokens)" if is_whole else "stopped"
            )
            why += self.hint
        return f"{measured.line(name.name)}\n{why}"

    def _replace(self, messages: list[Message]) -> None:
        """Other messages, if the model's template takes them."""
        self.llm.encode([*messages, {"role": "user", "content": "?"}])
        self.messages, self.cut = messages, None

    def _tau(self, drafter: str) -> str:
        stats = self.stats.get(drafter)
        return f", {stats.tau:.2f} tokens per pass (tau)" if stats and stats.passes else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )
