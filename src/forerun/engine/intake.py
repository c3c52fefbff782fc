"""What becomes of a prompt before it is queued: it is checked, and its sequences are made. Any thread may do so."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from forerun.core.errors import CapacityError, RequestError, short_repr
from forerun.core.params import SamplingParams
from forerun.core.structured import StructuredOutputsParams
from forerun.core.types import Seq
from forerun.decoding.grammar import GrammarState
from forerun.decoding.processors import LogitsPipeline
from forerun.decoding.stops import Detokenizer, StopChecker
from forerun.drafters.base.predicted import PredictedText
from forerun.engine.sequence import SequenceState
from forerun.text.tokenizer import TextStream, Tokenizer

NewGrammar = Callable[[StructuredOutputsParams], GrammarState]
NewText = Callable[[SamplingParams], Detokenizer | None]
"""Makes what turns a sequence's tokens into text."""


def text_maker(tokenizer: Tokenizer) -> NewText:
    """Return what makes the text of sequences of a tokenizer, for those that want any."""

    def new_text(params: SamplingParams) -> TextStream | None:
        if not params.detokenize:
            return None
        return TextStream(tokenizer, skip_special=params.skip_special_tokens)

    return new_text


@dataclass
class Intake:
    """Makes the sequences of one engine."""

    vocab_size: int
    max_len: int
    eos_ids: frozenset[int]
    seeds: random.Random
    """Gives seeds to sequences without one of their own."""
    grammars: NewGrammar | None
    encode: Callable[[str], Sequence[int]] | None
    """Encodes a prediction, and words that may not come."""
    ids: Iterator[int] = field(default_factory=count)

    def sequences(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        new_text: NewText,
        num_instructions: int = 0,
    ) -> Iterator[SequenceState]:
        """Check a request, begin to compile its grammar, encode its prediction, and yield its `n` sequences.

        Raises RequestError and CapacityError.
        """
        start_s, first = time.perf_counter(), replace(params)  # which checks it
        self._check(prompt, first)
        grammar, predicted = self._grammar(first), self._predicted_ids(first)
        bad_words, room = self._bad_words(first), self.max_len - len(prompt)
        max_tokens = room if first.max_tokens is None else min(first.max_tokens, room)
        for stream in range(first.n):
            own = first if stream == 0 else replace(first, prompt_logprobs=None)
            seed = self.seeds.getrandbits(63) if own.seed is None else own.seed
            seq = Seq(next(self.ids), list(prompt), own, seed, stream, num_instructions)
            stops = StopChecker(own, max_tokens, self.eos_ids, new_text(own))
            pipeline = LogitsPipeline(
                own,
                prompt,
                noise=seq.noise,
                eos_ids=self.eos_ids,
                grammar=grammar,
                bad_words=bad_words,
                runs_processors=True,
            )
            prediction = PredictedText(predicted) if predicted else None
            yield SequenceState(seq, stops, pipeline, prediction, start_s=start_s)

    def _check(self, prompt: Sequence[int], params: SamplingParams) -> None:
        if not prompt:
            raise RequestError("the prompt is empty: give at least one token")
        named = (*params.logit_bias, *params.stop_token_ids, *(params.allowed_token_ids or ()))
        self._check_ids((*prompt, *named))
        if len(prompt) >= self.max_len:
            raise CapacityError(
                f"the prompt has {len(prompt)} tokens, the context holds {self.max_len} including the "
                "answer: shorten the prompt or raise --max-model-len"
            )

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            if not (isinstance(token, int) and 0 <= token < self.vocab_size):
                raise RequestError(
                    f"token id {short_repr(token)} is not in the vocabulary of {self.vocab_size}"
                )

    def _grammar(self, params: SamplingParams) -> GrammarState | None:
        if params.structured_outputs is None:
            return None
        if self.grammars is None:
            message = "structured_outputs must be none: this engine has no grammars"
            raise RequestError(message, option="structured_outputs")
        return self.grammars(params.structured_outputs)

    def _bad_words(self, params: SamplingParams) -> list[tuple[int, ...]]:
        """Encode the words that may not come, each as it stands at the beginning of a text and within one."""
        if params.bad_words and self.encode is None:
            raise RequestError("bad_words must be none: this engine has no tokenizer")
        encode = self.encode or (lambda text: ())
        words = [word.strip() for word in params.bad_words]
        return [
            *dict.fromkeys(tuple(encode(f"{gap}{word}")) for word in words for gap in ("", " "))
        ]

    def _predicted_ids(self, params: SamplingParams) -> Sequence[int]:
        if not params.prediction or params.max_draft == 0:
            return ()
        token_ids: Sequence[int]
        if not isinstance(params.prediction, str):
            token_ids = params.prediction
        elif self.encode is not None:
            token_ids = self.encode(params.prediction)
        else:
            message = "prediction must be none: this engine has no tokenizer"
            raise RequestError(message, option="prediction")
        self._check_ids(token_ids)
        return token_ids
