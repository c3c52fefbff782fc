"""The conversation of `forerun chat` with a model of this machine, and what its answers took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.cli import console
from forerun.cli.messages import Cut, Message, Messages, count
from forerun.core.errors import CapacityError, ConfigError
from forerun.core.params import SamplingParams
from forerun.core.types import FinishReason
from forerun.engine.stats import SpecStats
from forerun.llm import LLM

LEARN_S = 0.2
"""So long drafters may learn after an answer, while it is read."""
WAY_OUT = "/clear forgets the conversation, /save FILE keeps it"


@dataclass(slots=True)
class Conversation(Messages):
    """Messages and answers. Raises ForerunError for what cannot be done; the conversation is then as before."""

    llm: LLM
    params: SamplingParams
    hint: str = ""
    """How to go on, behind the note that an answer was cut."""
    was_stopped: bool = False
    """Whether Ctrl-C ended the last answer."""
    stats: dict[str, SpecStats] = field(default_factory=dict)
    """By drafter."""
    answers: list[console.Measured] = field(default_factory=list)

    def check(self, messages: Sequence[Message]) -> None:
        """Raise RequestError if the model's template does not take them."""
        self.llm.encode([*messages, {"role": "user", "content": "?"}])

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

    def drafter(self, spec: str) -> str:
        """Draft in another way, or say how and with what success it is done. The weights stay as they are."""
        name = self.llm.drafter_spec.text()
        if not spec:
            return f"drafter {name}" + self._tau(name)
        with console.working(f"building {spec}"):
            self.llm = self.llm.with_drafter(spec)
        return f"drafter {self.llm.drafter_spec.text()} (before: {name}{self._tau(name)})"

    def summary(self) -> str:
        """One line about all answers."""
        tokens = sum(one.tokens for one in self.answers)
        decode_s = sum(one.seconds - (one.ttft_s or 0.0) for one in self.answers)
        after_first = sum(max(one.tokens - 1, 0) for one in self.answers)
        text = f"{count(len(self.answers), 'answer')}, {tokens} tokens"
        if after_first and decode_s:
            text += f", {after_first / decode_s:.1f} tok/s"
        taus = [f"{name} {stats.tau:.2f}" for name, stats in self.stats.items() if stats.passes]
        return text + (f"; tokens per pass (tau): {', '.join(taus)}" if taus else "")

    def _answer(self, asked: Sequence[Message], prompt: Sequence[int], before: str) -> str:
        try:
            given, measured, is_whole = console.answer(self.llm, prompt, self.params)
        except CapacityError as error:
            raise CapacityError(f"{error}. {WAY_OUT}") from error
        name = self.llm.drafter_spec
        self.stats.setdefault(name.text(), SpecStats()).add(measured.stats)
        self.answers.append(measured)
        self.llm.loop.learn(LEARN_S)
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

    def _tau(self, drafter: str) -> str:
        stats = self.stats.get(drafter)
        return f", {stats.tau:.2f} tokens per pass (tau)" if stats and stats.passes else ""
