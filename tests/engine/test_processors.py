"""What a caller does to logits: with drafts the tokens are those of plain decoding, and each is asked for once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from forerun.core.errors import RequestError
from forerun.core.params import SamplingParams
from forerun.drafters import draft_model, suffix
from forerun.drafters.base.contract import Target
from forerun.engine.loop import EngineLoop
from tests.engine.harness import GREEDY, LOOPING, complete, engine_for
from tests.tiny import tiny_model

MODEL = tiny_model(3, vocab_size=40, sharpness=3.0)
NOISY = tiny_model(3, vocab_size=40, sharpness=3.0, noise=0.4)
SAMPLED = SamplingParams(temperature=0.8, seed=5, top_p=0.95, max_tokens=40)


def engine_with(drafter: str):
    target = Target(MODEL, None, max_num_seqs=4, max_len=256)
    if drafter == "none":
        return engine_for(MODEL)
    if drafter == "suffix":
        return engine_for(MODEL, suffix.build(suffix.Options(), target))
    options = draft_model.Options(model="tiny", num_draft=4)
    return engine_for(MODEL, draft_model.drafter_of(NOISY, options, target))


def no_token_twice_in_three(generated, logits):
    """Depends on what was generated; changes the logits in place."""
    logits[generated[-2:]] = -np.inf


def leaning(prompt, generated, logits):
    """Depends on the prompt, and returns new logits."""
    return logits + np.float32(0.5) * (np.arange(len(logits)) % (1 + len(prompt)) == 0)


@pytest.mark.parametrize("drafter", ["suffix", "draft_model"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_drafts_do_not_change_what_processors_leave(drafter, params):
    params = replace(params, logits_processors=[no_token_twice_in_three, leaning])
    plain = complete(engine_with("none"), LOOPING, params)
    drafted = complete(engine_with(drafter), LOOPING, params)
    untouched = complete(engine_with("none"), LOOPING, replace(params, logits_processors=()))
    texts = [[run.seq.generated for run in runs] for runs in (plain, drafted, untouched)]
    assert texts[0] == texts[1] != texts[2]
    if drafter == "draft_model":
        assert sum(run.stats.accepted for run in drafted) > 0
        assert sum(run.stats.rejected for run in drafted) > 0
    for run in drafted:
        ids = run.seq.generated
        assert all(len({*ids[i : i + 3]}) == 3 for i in range(len(ids) - 2))


@pytest.mark.parametrize("drafter", ["none", "suffix", "draft_model"])
def test_a_processor_is_called_once_for_each_token_with_those_before_it(drafter):
    seen = []

    def watch(prompt, generated, logits):
        seen.append((prompt, generated))

    (run,) = complete(engine_with(drafter), LOOPING[:1], replace(GREEDY, logits_processors=[watch]))
    ids = run.seq.generated
    assert seen[: len(ids)] == [(LOOPING[0], ids[:i]) for i in range(len(ids))]
    assert len(seen) - len(ids) < 8, "only what a draft had accepted behind the end"


@pytest.mark.parametrize("drafter", ["none", "draft_model"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_only_allowed_tokens_come(drafter, params):
    allowed = [2, 3, 5, 7, 11]
    runs = complete(engine_with(drafter), LOOPING, replace(params, allowed_token_ids=allowed))
    assert {token for run in runs for token in run.seq.generated} <= {*allowed}
    plain = complete(engine_with("none"), LOOPING, replace(params, allowed_token_ids=allowed))
    assert [run.seq.generated for run in runs] == [run.seq.generated for run in plain]


def letters(text):
    """Two letters are two tokens; a space before them is one more."""
    return [39 if letter == " " else ord(letter) - ord("a") for letter in text]


def test_bad_words_of_several_tokens_do_not_come():
    engine = engine_with("draft_model")
    engine.intake.encode = letters
    params = replace(SAMPLED, temperature=2.0, allowed_token_ids=[*range(26)])
    (free,) = complete(engine, LOOPING[:1], params)
    ids = free.seq.generated
    at = next(
        i for i in range(20) if (ids[i], ids[i + 1]) not in [*pairwise(ids[: i + 1])] and i > 2
    )
    word = "".join(chr(ord("a") + token) for token in ids[at : at + 2])
    (kept,) = complete(engine, LOOPING[:1], replace(params, bad_words=[word]))
    assert kept.seq.generated[: at + 1] == ids[: at + 1], "a part of a word may come"
    assert tuple(ids[at : at + 2]) not in [*pairwise(kept.seq.generated)]
    single = chr(ord("a") + ids[at])
    (kept,) = complete(engine, LOOPING[:1], replace(params, bad_words=[word, single]))
    assert ids[at] not in kept.seq.generated
    assert kept.stats.drafted


def test_all_log_probabilities_of_a_token():
    (run,) = complete(
        engine_with("suffix"), LOOPING[:1], replace(GREEDY, logprobs=-1, max_tokens=3)
    )
    for one in run.logprobs:
        assert len(one.top) == 40
        assert sum(np.exp(value) for _, value in one.top) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("processor", "error"),
    [
        (lambda ids, logits: logits[:-1], "a logits processor must return 40 logits"),
        (lambda ids, logits: logits - np.inf, "no token"),
        (lambda ids, logits: 1 / 0, "division by zero"),
    ],
)
def test_a_processor_that_fails_ends_its_request_alone(processor, error):
    loop = EngineLoop(engine_with("draft_model"))
    wrong = loop.submit(LOOPING[0], replace(GREEDY, logits_processors=[processor]))
    right = loop.submit(LOOPING[1], GREEDY)
    with pytest.raises((RequestError, ZeroDivisionError), match=error):
        wrong.wait()
    right.wait()
    (alone,) = complete(engine_with("none"), LOOPING[1:2], GREEDY)
    assert right.runs[0].seq.generated == alone.seq.generated
