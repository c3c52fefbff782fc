"""The report on the sampling distribution: right engines pass, wrong ones are caught, p-values mean what they say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from forerun import LLM
from forerun.core.batch import Batch, Segment
from forerun.core.params import SamplingParams
from forerun.decoding.processors import LogitsPipeline
from forerun.drafters import draft_model, suffix
from forerun.drafters.base.contract import Target
from forerun.engine import engine
from tests.engine import sampling
from tests.engine.harness import engine_for
from tests.mutants import accepting_everything, favouring_drafts
from tests.tiny import tiny_model

MODEL = tiny_model(8, vocab_size=4, num_layers=1, sharpness=1.5)
NOISY = tiny_model(8, vocab_size=4, num_layers=1, sharpness=1.5, noise=0.6)
PROMPT = [0, 1, 2, 0, 1, 2, 0, 1]
WARM, NUCLEUS = SamplingParams(temperature=1.5), SamplingParams(temperature=2.0, top_p=0.9)
NUM = 400
FALSE_ALARM = 1e-6


def drafting(drafter: str):
    target = Target(MODEL, None, max_num_seqs=32, max_len=64)
    built = (
        suffix.build(suffix.Options(), target)
        if drafter == "suffix"
        else draft_model.drafter_of(NOISY, draft_model.Options(model="tiny", num_draft=4), target)
    )
    return engine_for(MODEL, built, max_num_seqs=32, max_len=64)


def report(drafter: str, *settings: SamplingParams) -> sampling.Report:
    steps = sampling.run(drafting(drafter), [PROMPT], settings, length=3, num_samples=NUM)
    return sampling.Report(tuple(check for checks in steps for check in checks), FALSE_ALARM)


@pytest.mark.parametrize("drafter", ["suffix", "draft_model"])
def test_a_right_engine_holds(drafter):
    result = report(drafter, WARM, NUCLEUS)
    assert result.was_tested
    assert result.failed == ()
    assert [check.length for check in result.checks] == [1, 2, 3] * 2
    assert result.checks[2].cells > 6
    assert result.threshold == pytest.approx(FALSE_ALARM / 6)


@pytest.mark.parametrize("drafter", ["suffix", "draft_model"])
def test_a_verifier_that_accepts_everything_is_caught(drafter, monkeypatch):
    monkeypatch.setattr(engine, "verify", accepting_everything)
    broken = report(drafter, WARM).failed
    assert {check.length for check in broken} == {2, 3}, "the first token is never drafted"


def test_noise_that_favours_drafts_is_caught(monkeypatch):
    monkeypatch.setattr(engine, "verify", favouring_drafts)
    assert report("draft_model", WARM).failed


def test_tokens_of_chance_zero_fail_at_once(monkeypatch):
    honest = LogitsPipeline.choose
    monkeypatch.setattr(
        LogitsPipeline,
        "choose",
        lambda self, *args: honest(LogitsPipeline(WARM, PROMPT, noise=self.noise), *args),
    )
    checks = report("suffix", NUCLEUS).checks
    assert all(check.impossible and check.p_value == 0 for check in checks)


def enumerated(model, prompt, length, temperature) -> dict[tuple[int, ...], float]:
    """The distribution of the next `length` tokens: one pass a prefix, softmax in fp64."""
    masses = {(): 1.0}
    for _ in range(length):
        longer = {}
        for prefix, mass in masses.items():
            cache = model.new_cache(1, 64)
            batch = Batch((Segment(0, 0, (*prompt, *prefix)),))
            logits = model.head(model.forward(batch, cache).last[-1:])[0] / np.float64(temperature)
            for token, p in enumerate(softmax(logits).tolist()):
                longer[(*prefix, token)] = mass * p
        masses = longer
    return masses


def test_the_exact_distribution_is_the_product_of_the_softmax_rows():
    exact = sampling.exact_distribution(MODEL, PROMPT, WARM, 3, floor=0.0)
    whole = {tokens: mass for tokens, mass in exact.mass.items() if len(tokens) == 3}
    assert whole == pytest.approx(enumerated(MODEL, PROMPT, 3, WARM.temperature), rel=1e-4)


def test_a_floor_leaves_out_the_rare_and_nothing_else():
    every = sampling.exact_distribution(MODEL, PROMPT, WARM, 2, floor=0.0).mass
    likely = sampling.exact_distribution(MODEL, PROMPT, WARM, 2, floor=0.05).mass
    assert 1 < len(likely) < len(every)
    assert likely == {tokens: mass for tokens, mass in every.items() if mass >= 0.05}


def test_p_values_are_fair():
    """Samples drawn from the distribution itself: p-values are uniform, so alarms come as often as they should."""
    known = sampling.exact_distribution(MODEL, PROMPT, WARM, 2, floor=sampling.MIN_EXPECTED / NUM)
    full = sampling.exact_distribution(MODEL, PROMPT, WARM, 2, floor=0.0).mass
    pairs = [tokens for tokens in full if len(tokens) == 2]
    mass = np.array([full[tokens] for tokens in pairs])
    generator = np.random.default_rng(0)
    p_values = []
    for counts in generator.multinomial(NUM, mass / mass.sum(), size=500):
        sequences = [t for t, n in zip(pairs, counts, strict=True) for _ in range(n)]
        statistic, cells, impossible = sampling.compare(known, sequences, 2)
        assert impossible == 0
        p_values.append(stats.chi2.sf(statistic, cells - 1))
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4


def test_every_sample_is_counted_once():
    row = np.array([0.5, 0.3, 0.2], np.float32)
    known = sampling.Distribution({(): 1.0, (0,): 0.5, (1,): 0.3}, {(): row})
    sample = [(0,)] * 50 + [(1,)] * 25 + [(2,)] * 25
    statistic, cells, impossible = sampling.compare(known, sample, 1)
    assert (cells, impossible) == (3, 0)
    assert statistic == pytest.approx(0 + 25 / 30 + 25 / 20)


def test_samples_of_the_default_model_follow_its_distribution(default_model):
    """Words of the real vocabulary, the native kernels, the drafter that everybody gets."""
    llm = LLM(default_model, max_num_seqs=32, max_model_len=64, controller=False)
    given = SamplingParams(temperature=0.7, top_p=0.9)
    prompts = [llm.encode("red green blue red green blue red green")]
    steps = sampling.run(llm.engine, prompts, [given], length=2, num_samples=100)
    result = sampling.Report(tuple(check for checks in steps for check in checks), FALSE_ALARM)
    assert result.was_tested
    assert result.failed == ()
