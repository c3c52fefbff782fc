"""The engine with scripted drafters: exact counts, joining, leaving, limits."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from forerun.core.errors import CapacityError, RequestError
from forerun.core.params import SamplingParams
from forerun.core.types import LAST_HIDDEN, LAST_ROW, Features, FinishReason
from tests.engine.harness import GREEDY, LOOPING, Scripted, complete, drain, engine_for, plain
from tests.tiny import tiny_model

MODEL = tiny_model(3, sharpness=3.0)
ANSWERS = {tuple(p): a for p, a in zip(LOOPING, plain(MODEL, LOOPING, GREEDY), strict=True)}


def scripted(script, **options) -> Scripted:
    return Scripted(ANSWERS, script, **options)


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
def test_a_drafter_right_to_depth_d_emits_d_plus_one_tokens_a_pass(depth):
    drafter = scripted(lambda step: depth)
    engine = engine_for(MODEL, drafter)
    (run,) = complete(engine, LOOPING[:1], GREEDY)
    assert run.seq.generated == ANSWERS[tuple(LOOPING[0])]
    remaining = GREEDY.max_tokens - 1  # the first token comes with the prompt
    whole, rest = divmod(remaining, depth + 1)
    assert run.stats.passes == whole + (rest > 0)
    assert run.stats.emitted == remaining
    assert run.stats.accepted == remaining - run.stats.passes
    assert run.stats.rejected == run.stats.drafted - run.stats.accepted
    assert run.stats.accepted_by_depth[:depth] == pytest.approx([run.stats.passes] * depth, abs=1)


def test_changing_luck_changes_speed_not_tokens():
    drafter = scripted(lambda step: (0, 4, 2, 1, 3)[step % 5])
    runs = complete(engine_for(MODEL, drafter), LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())
    for run in runs:
        assert run.stats.drafted > run.stats.accepted > 0 < run.stats.rejected
        assert 1 < run.stats.tau < 5


def test_tau_of_plain_decoding_is_one():
    (run,) = complete(engine_for(MODEL), LOOPING[:1], GREEDY)
    assert run.stats.tau == 1
    assert run.stats.drafted == 0


def test_requests_join_and_leave_a_running_batch_without_a_trace():
    engine = engine_for(MODEL, scripted(lambda step: step % 3), max_num_seqs=3)
    first = engine.add(LOOPING[0], GREEDY)
    for _ in range(5):
        engine.step()
    second = engine.add(LOOPING[1], GREEDY)
    for _ in range(3):
        engine.step()
    engine.abort(first.seq.id)
    third = engine.add(LOOPING[2], GREEDY)
    drain(engine)
    assert second.seq.generated == ANSWERS[tuple(LOOPING[1])]
    assert third.seq.generated == ANSWERS[tuple(LOOPING[2])]
    assert first.seq.finish_reason is FinishReason.ABORT
    cut = first.seq.generated
    assert 0 < len(cut) < GREEDY.max_tokens
    assert cut == ANSWERS[tuple(LOOPING[0])][: len(cut)]


def test_a_preempted_sequence_goes_on_where_it_was():
    drafter = scripted(lambda step: step % 3)
    engine = engine_for(MODEL, drafter, max_num_seqs=2)
    runs = [engine.add(prompt, GREEDY) for prompt in LOOPING[:2]]
    for _ in range(6):
        engine.step()
    engine.preempt(runs[0].seq.id)
    other = engine.add(LOOPING[2], GREEDY)  # behind the preempted one
    for _ in range(4):
        engine.step()
    engine.preempt(runs[1].seq.id)
    drain(engine)
    assert [r.seq.generated for r in (*runs, other)] == list(ANSWERS.values())
    assert drafter.began.count(runs[0].seq.id) == 2


def test_more_requests_than_slots_wait_their_turn():
    engine = engine_for(MODEL, scripted(lambda step: 1), max_num_seqs=2)
    runs = complete(engine, LOOPING * 2, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values()) * 2


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_the_prefill_chunk_changes_nothing(chunk):
    engine = engine_for(MODEL, scripted(lambda step: 2), prefill_chunk=chunk)
    runs = complete(engine, LOOPING, GREEDY)
    assert [run.seq.generated for run in runs] == list(ANSWERS.values())


def test_every_sequence_is_ended_once_or_more_and_nothing_is_left():
    drafter = scripted(lambda step: 1)
    engine = engine_for(MODEL, drafter)
    complete(engine, LOOPING, GREEDY)
    assert set(drafter.ended) == {0, 1, 2}
    assert not engine.sequences
    assert not engine.scheduler.running
    assert engine.step() == []


def test_a_shared_prompt_is_read_once():
    engine = engine_for(MODEL)
    prompt = [1, 2, 3, 4] * 20
    runs = [engine.add(prompt, GREEDY) for _ in range(4)]
    rows = []
    forward = engine.model.forward

    def counting(batch, cache, aux_layers=()):
        rows.append(batch.num_rows)
        return forward(batch, cache, aux_layers)

    engine.model.forward = counting  # type: ignore[method-assign]
    try:
        drain(engine)
    finally:
        del engine.model.forward
    assert len({tuple(run.seq.generated) for run in runs}) == 1
    assert sum(rows) < 1.5 * len(prompt) + 4 * GREEDY.max_tokens


def test_a_next_turn_reuses_the_rows_of_the_last_one():
    engine = engine_for(MODEL, scripted(lambda step: 2), max_len=256)
    (first,) = complete(engine, LOOPING[:1], GREEDY)
    follow_up = [*first.seq.tokens, 9, 8]
    run = engine.add(follow_up, GREEDY)
    engine.scheduler.admit()
    assert len(run.seq.tokens) - engine.cache.length(run.seq.slot) <= 3
    engine.abort(run.seq.id)
    (alone,) = plain(MODEL, [follow_up], GREEDY)
    reused = engine_for(MODEL)
    complete(reused, LOOPING[:1], GREEDY)
    assert complete(reused, [follow_up], GREEDY)[0].seq.generated == alone


def test_an_end_inside_an_accepted_run_cuts_it():
    answer = ANSWERS[tuple(LOOPING[0])]
    end = answer[7]
    expected = answer[: answer.index(end) + 1]
    params = SamplingParams(temperature=0, max_tokens=40, stop_token_ids=(end,))
    engine = engine_for(MODEL, scripted(lambda step: 4))
    (run,) = complete(engine, LOOPING[:1], params)
    assert run.seq.generated == expected
    assert run.seq.finish_reason is FinishReason.STOP
    assert engine.cache.length(0) <= len(run.seq.tokens)


def test_the_context_is_filled_to_the_last_token_and_not_beyond():
    drafter = scripted(lambda step: 4)
    engine = engine_for(MODEL, drafter, max_len=24)
    (run,) = complete(engine, LOOPING[:1], SamplingParams(temperature=0, max_tokens=None))
    assert len(run.seq.tokens) == 24
    assert run.seq.finish_reason is FinishReason.LENGTH
    assert run.seq.generated == ANSWERS[tuple(LOOPING[0])][:16]


def test_features_arrive_for_the_prompt_and_for_every_node():
    drafter = scripted(lambda step: 2, features=Features(last=True, layers=(0,), whole_prompt=True))
    engine = engine_for(MODEL, drafter, prefill_chunk=3)
    (run,) = complete(engine, LOOPING[:1], GREEDY)
    prompt, *later = drafter.outcomes
    width = MODEL.config.hidden_size
    assert prompt.hidden.shape == (len(LOOPING[0]), 2 * width)
    for draft, outcome in zip(drafter.drafts[1:], later, strict=True):
        assert len(outcome.hidden) == 1 + len(draft)
        assert outcome.hidden.shape[1] == 2 * width
    best = MODEL.topk(later[0].hidden[:, width:], 1).ids[:, 0]
    assert best.tolist() == [*later[0].best], "the last feature is what the head reads"
    assert run.seq.generated == ANSWERS[tuple(LOOPING[0])]
    assert LAST_HIDDEN.last


@pytest.mark.parametrize(
    "features", [LAST_HIDDEN, LAST_ROW, replace(LAST_HIDDEN, whole_prompt=True)]
)
def test_only_features_of_the_whole_prompt_switch_prefix_reuse_off(features):
    drafter = scripted(lambda step: 2, features=features)
    engine = engine_for(MODEL, drafter, max_num_seqs=1)
    again = [*LOOPING[0][:5], 9, 8]
    complete(engine, LOOPING[:1], GREEDY)
    drafter.answers[tuple(again)] = plain(MODEL, [again], GREEDY)[0]
    drafter.outcomes.clear()
    (run,) = complete(engine, [again], GREEDY)
    num_rows = 1 if features.last_row else 7 if features.whole_prompt else 2
    assert len(drafter.outcomes[0].hidden) == num_rows
    wanted = MODEL.topk(drafter.outcomes[0].hidden[-1:], 1).ids[0, 0]
    assert wanted == run.seq.generated[0]
    assert run.seq.generated == drafter.answers[tuple(again)]


@pytest.mark.parametrize("asks", [{"logprobs": 0}, {"presence_penalty": 0.5}, {"temperature": 1.0}])
def test_logits_are_written_only_where_somebody_looks_at_them(asks):
    drafter = scripted(lambda step: 2)
    engine = engine_for(MODEL, drafter)
    complete(engine, LOOPING[:1], GREEDY)
    assert drafter.outcomes
    assert all(o.logits is None for o in drafter.outcomes)
    assert [len(o.best) for o in drafter.outcomes] == [1 + len(d) for d in drafter.drafts]
    drafter.drafts.clear()
    drafter.outcomes.clear()
    params = replace(GREEDY, **asks)
    complete(engine, LOOPING[:2], params)
    assert drafter.outcomes
    assert all(o.best is None for o in drafter.outcomes)
    assert [len(o.logits) for o in drafter.outcomes] == [1 + len(d) for d in drafter.drafts]


@pytest.mark.parametrize("extra", [{}, {"presence_penalty": 0.5}, {"temperature": 1.0, "seed": 3}])
def test_a_drafter_gets_the_targets_likeliest_tokens_of_every_row(extra):
    """Greedily without logits; with them the same. In a batch each sequence its own."""
    drafter = scripted(lambda step: 2, features=Features(top_k=3))
    complete(engine_for(MODEL, drafter), LOOPING, replace(GREEDY, **extra))
    assert drafter.outcomes
    asks_logits = bool(extra)
    for draft, outcome in zip(drafter.drafts, drafter.outcomes, strict=True):
        assert outcome.top.ids.shape == outcome.top.values.shape == (1 + len(draft), 3)
        assert (outcome.logits is not None) == asks_logits
        assert outcome.likeliest(slice(None)) == outcome.top.ids[:, 0].tolist()
        if outcome.logits is not None:
            probs = np.exp(outcome.logits - outcome.logits.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            expected = np.take_along_axis(probs, outcome.top.ids, -1)
            np.testing.assert_allclose(outcome.top.probs(), expected, rtol=1e-5)
            assert np.array_equal(outcome.top.values, -np.sort(-outcome.logits)[:, :3])


def test_more_likeliest_tokens_than_there_are_tokens_are_all_of_them():
    drafter = scripted(lambda step: 2, features=Features(top_k=100))
    complete(engine_for(MODEL, drafter), LOOPING[:1], GREEDY)
    for outcome in drafter.outcomes:
        assert outcome.top.ids.shape[1] == MODEL.config.vocab_size
        sums = outcome.top.probs().sum(-1)
        assert sums == pytest.approx(1)


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ([], {}, RequestError, "empty"),
        ([24], {}, RequestError, "token id 24 is not in the vocabulary"),
        ([-1], {}, RequestError, "token id -1"),
        ([1], {"logit_bias": {99: 1.0}}, RequestError, "token id 99"),
        ([1], {"stop_token_ids": (99,)}, RequestError, "token id 99"),
        ([1], {"stop": ("x",)}, RequestError, "stop strings need a tokenizer"),
        ([1] * 32, {}, CapacityError, "the prompt has 32 tokens, the context holds 32"),
    ],
)
def test_a_wrong_request_is_refused_and_the_others_go_on(prompt, params, error, message):
    engine = engine_for(MODEL, max_len=32)
    run = engine.add(LOOPING[0], GREEDY)
    with pytest.raises(error, match=message):
        engine.add(prompt, SamplingParams(**params))
    drain(engine)
    assert run.seq.generated == ANSWERS[tuple(LOOPING[0])][:24]


def test_a_prompts_logprobs_are_the_same_after_preemption_and_beside_others():
    model = tiny_model(3)
    prompt = [7 * i % 23 for i in range(40)]
    params = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=2)
    alone, busy = (engine_for(model, prefill_chunk=16) for _ in range(2))
    (reference,) = complete(alone, [prompt], params)
    assert [entry.token_id for entry in reference.prompt_logprobs] == prompt[1:]
    busy.add(prompt[:30], SamplingParams(temperature=0, max_tokens=3))
    run = busy.add(prompt, params)
    for _ in range(2):
        busy.step()
        busy.preempt(run.seq.id)
    while busy.has_work:
        busy.step()
    assert run.prompt_logprobs == reference.prompt_logprobs
    assert run.seq.generated == reference.seq.generated


def test_logprobs_are_those_of_plain_decoding():
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=3)
    (reference,) = complete(engine_for(MODEL), LOOPING[:1], params)
    (run,) = complete(engine_for(MODEL, scripted(lambda step: step % 4)), LOOPING[:1], params)
    assert run.stats.accepted > 0
    assert run.logprobs == reference.logprobs
    assert [entry.token_id for entry in run.logprobs] == run.seq.generated
    assert all(len(entry.top) == 3 and entry.rank == 1 for entry in run.logprobs)


def test_drafts_shorter_than_the_least_are_dropped():
    def drafted(min_draft: int, **options) -> int:
        drafter = scripted(lambda step: 1, length=3)
        engine = engine_for(MODEL, drafter, min_draft=min_draft, **options)
        (run,) = complete(engine, LOOPING[:1], GREEDY)
        assert run.seq.generated == ANSWERS[tuple(LOOPING[0])]
        return run.stats.drafted

    assert drafted(0) == drafted(1) >= drafted(3) > drafted(4) == 0
    assert drafted(3, draft_budget=2) == 0


def test_a_seed_of_the_engine_seeds_requests_that_have_none():
    def answers(seed: int | None) -> list[list[int]]:
        params = SamplingParams(temperature=2.0, max_tokens=12)
        runs = complete(engine_for(MODEL, seed=seed), LOOPING[:1] * 2, params)
        return [run.seq.generated for run in runs]

    assert answers(5) == answers(5)
    assert answers(5)[0] != answers(5)[1]
    assert answers(5) != answers(6)
    assert answers(None) != answers(None)


@pytest.mark.parametrize("chunk", [1, 3, 16])
@pytest.mark.parametrize("pooling", ["last", "mean", "none"])
def test_what_is_pooled_of_a_prompt_outlives_preemptions(pooling, chunk):
    """Also while it generates: then the generated tokens are read again, too."""
    prompt = LOOPING[2]
    params = replace(GREEDY, pooling=pooling)

    def states(preempted_at: tuple[int, ...]):
        engine = engine_for(MODEL, prefill_chunk=chunk)
        run = engine.add(prompt, params)
        for step in itertools.count():
            engine.step()
            if not engine.has_work:
                return run.states(), run.num_pooled, run.seq.generated
            if step in preempted_at:
                engine.preempt(run.seq.id)

    vectors, num_pooled, tokens = states(())
    assert num_pooled == len(prompt)
    found = states((2, 25, 40))
    assert np.array_equal(found[0], vectors)
    assert found[1:] == (num_pooled, tokens)
