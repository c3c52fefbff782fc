"""MTP heads inside a model's file: transformers' own module says the same at every step; trees, rows, bad files."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from forerun.core.batch import Batch, Segment
from forerun.core.types import Outcome, Seq
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.mtp import Options, build
from tests.drafters.helpers import ASKED, GREEDY, SAMPLED, WANTED, check_lossless, decoded, refusal
from tests.drafters.mtp_files import Oracle, target_of
from tests.model.gguf_spellings import HYBRID, SMALL
from tests.native.test_families import WIDTHS
from tests.oracles.growth import Step

PROMPT = [5, 17, 3, 44, 21, 8, 30, 2, 60, 11, 7]
FAMILIES = ("llama", "qwen3", "qwen3_5", "qwen3_next", "qwen3_5_moe")
NATIVE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def states_of(target, tokens):
    """The states (T, D) that the target's head reads."""
    cache = target.model.new_cache(1, 128)
    return target.model.forward(Batch((Segment(0, 0, tuple(tokens)),)), cache).last


def begun(drafter, states, tokens=PROMPT, seq_id=0):
    """A sequence whose prompt is all tokens but the last, which the target said."""
    seq = Seq(seq_id, [*tokens[:-1]], GREEDY, 0)
    seq.tokens.append(tokens[-1])
    drafter.begin(seq, Outcome((), (tokens[-1],), hidden=np.asarray(states[: len(tokens) - 1])))
    return seq


def new_drafter(target, **options):
    return build(Options(**{"quant": "none", "min_chance": 0, **options}), target)


def check_steps(target, oracle, atol):
    """A tree of three levels: after every step the oracle's logits along that path."""
    drafter, states = new_drafter(target), oracle.states(PROMPT[:-1])
    seq = begun(drafter, states_of(target, PROMPT[:-1]))
    take = drafter.new_draft([seq], [8])
    # token, the step before, the tokens of its path
    steps = [(PROMPT[-1], -1), (9, 0), (33, 1), (50, 0), (12, 3), (4, 2)]
    paths = [[]]
    for number, (token, parent) in enumerate(steps):
        depth = len(paths[parent]) + (number > 0) if parent >= 0 else 0
        if number:
            paths.append([*paths[parent], token])
        (scores,) = take(number, [Step(0, parent, token, depth)])
        expected = oracle_logits(oracle, states, paths[-1])
        assert np.allclose(scores.dense(), expected, atol=atol)


def oracle_logits(oracle, states, path):
    """Logits after a path of guesses below the prompt's last token: each guessed row reads the n before it."""
    tokens, hidden = PROMPT[1:], states
    after, logits = oracle.step(tokens, hidden)
    for token in path:
        tokens, hidden = [*tokens, token], torch.cat([hidden, after[-1:]])
        after, logits = oracle.step(tokens, hidden)
    return logits[-1].detach().numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_step_gives_the_logits_of_transformers(family, tmp_path):
    oracle = Oracle(family, **{"head_dim": 16, **WIDTHS.get(family, {})})
    check_steps(target_of(oracle.folder(tmp_path)), oracle, 0.02)


GGUFS = (
    ("qwen3", "qwen3", {}, {}),
    ("qwen3_5", "qwen35", {}, HYBRID),
    (
        "qwen3_next",
        "qwen3next",
        {"mlp_only_layers": [], **WIDTHS["qwen3_next"]},
        HYBRID
        | SMALL
        | {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64},
    ),
)


@pytest.mark.parametrize(
    ("family", "architecture", "changes", "extra"), GGUFS, ids=lambda x: str(x)[:9]
)
def test_a_gguf_file_gives_them_too(family, architecture, changes, extra, tmp_path):
    oracle = Oracle(family, **changes)
    target = target_of(oracle.gguf(tmp_path / "model.gguf", architecture, extra))
    assert target.model.config.num_layers == oracle.config.num_hidden_layers
    check_steps(target, oracle, 0.02)


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_heads_with_a_router_of_sigmoids_and_with_latents_do(family, tmp_path):
    """Blocks of GLM-4.5's kind and of DeepSeek-V3's."""
    oracle = Oracle(family, hidden_size=64, **WIDTHS[family], first_k_dense_replace=0)
    check_steps(target_of(oracle.folder(tmp_path)), oracle, 0.02)


@pytest.fixture(scope="module")
def trained():
    """A model and its head that learned for a few seconds to count on by the step of a text's first two tokens."""
    oracle = Oracle("qwen3", **NATIVE, vocab_size=32)
    model, base, head = oracle.model, oracle.model.get_decoder(), oracle.head
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=4e-3)
    generator = torch.Generator().manual_seed(3)
    positions, mask = torch.arange(18)[None], torch.full((18, 18), -torch.inf).triu(1)[None, None]
    for _ in range(110):
        first, by = torch.randint(0, 32, (2, 32, 1), generator=generator)
        texts = (first + by % 5 * torch.arange(19)) % 32
        states = base(texts).last_hidden_state
        embedded = base.embed_tokens(texts[:, 1:])
        rotary = base.rotary_emb(embedded, positions)
        states_after = head(embedded, states[:, :-1], rotary, mask, positions, None)
        loss = next_token_loss(model, states[:, 1:-1], texts[:, 2:])
        loss = loss + next_token_loss(model, states_after[:, :-1], texts[:, 2:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return oracle


def next_token_loss(model, states, tokens):
    return functional.cross_entropy(model.lm_head(states).flatten(0, 1), tokens.flatten())


@pytest.mark.parametrize("params", [WANTED, SAMPLED], ids=["greedy", "sampled"])
def test_a_trained_head_is_often_right_and_changes_no_token(trained, tmp_path, params):
    target = target_of(trained.folder(tmp_path))
    drafters = ("mtp:num_draft=6,num_steps=4", "mtp++recycling:table=none")
    check_lossless(target, drafters, params, tau=1.5)


def test_the_tree_follows_the_heads_chances(trained, tmp_path):
    target = target_of(trained.folder(tmp_path))
    drafter = build(Options(quant="none", num_draft=6, min_chance=0.05), target)
    tokens = decoded(target, None)[0][0]
    text = [*ASKED[0], *tokens[:8]]
    seq = begun(drafter, states_of(target, text), text)
    (draft,) = drafter.propose([seq], [6])
    assert draft.tokens[0] == tokens[8]
    assert draft.confidence is not None
    assert all(0 < p <= 1 for p in draft.confidence)


def test_auto_takes_the_head_of_the_file(tmp_path):
    oracle = Oracle("qwen3")
    auto = DrafterSpec.of("auto")
    assert auto.for_target(target_of(oracle.folder(tmp_path / "with"))).name == "mtp++recycling"
    assert auto.for_target(target_of(oracle.folder(tmp_path / "without", {}))).name == "recycling"
    narrow = oracle.tensors() | {"mtp.fc.weight": torch.zeros(16, 32)}
    assert auto.for_target(target_of(oracle.folder(tmp_path / "wrong", narrow))).name == "recycling"


def test_the_head_may_lie_in_another_file(tmp_path):
    oracle = Oracle("qwen3")
    inside, outside = oracle.folder(tmp_path / "a"), oracle.folder(tmp_path / "b", {})
    states = oracle.states(PROMPT[:-1])
    trees = []
    for path, model in ((inside, "self"), (outside, str(inside))):
        drafter = new_drafter(target_of(path), model=model)
        trees.append(drafter.propose([begun(drafter, states)], [6])[0])
    assert trees[0] == trees[1]


def test_an_embedding_and_a_head_of_its_own_are_used(tmp_path):
    """As GGUF files and DeepSeek's folders may have them."""
    oracle = Oracle("qwen3")
    layer = f"model.layers.{oracle.config.num_hidden_layers}."
    block = {k: v for k, v in oracle.state_dict().items() if k.startswith(layer)}
    tensors = {
        k.replace(".nextn.", ".").replace("shared_head_", "shared_head."): v
        for k, v in block.items()
    }
    shared = oracle.folder(tmp_path / "shared", tensors)
    check_steps(target_of(shared), oracle, 0.02)
    replaced = {
        f"{layer}embed_tokens.weight": oracle.model.get_input_embeddings().weight.detach().flip(0),
        f"{layer}shared_head.head.weight": oracle.model.lm_head.weight.detach().flip(0),
    }
    logits = []
    for path, more in ((shared, tensors), (tmp_path / "own", tensors | replaced)):
        drafter = new_drafter(target_of(oracle.folder(path, more)))
        seq = begun(drafter, oracle.states(PROMPT[:-1]).numpy())
        logits.append(drafter.new_draft([seq], [8])(0, [Step(0, -1, PROMPT[-1], 0)])[0].dense())
    assert not np.allclose(*logits, atol=1e-2)


WRONG = [
    ("mtp.fc.weight", torch.zeros(16, 32), r"tensor 'mtp.fc.weight' should be (32, 64), but is (16, 32)"),
    ("mtp.norm.weight", torch.zeros(16), "tensor 'mtp.norm.weight' should be (32,), but is (16,)"),
    ("mtp.layers.0.mlp.up_proj.weight", None, "no tensor 'mtp.layers.0.mlp.up_proj.weight', which qwen3 needs"),
    ("mtp.layers.0.self_attn.k_proj.weight", torch.zeros(16, 32), "'mtp.layers.0.self_attn.k_proj.weight' should be"),
    ("mtp.pre_fc_norm_hidden.weight", None, "no tensor 'mtp.pre_fc_norm_hidden.weight'"),
    ("mtp.fc.weight", None, "has no head that drafts behind 2 layers"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tensor", "message"), WRONG, ids=lambda x: str(x)[:30])
def test_a_head_that_does_not_fit_is_told_in_a_line(name, tensor, message, tmp_path):
    oracle = Oracle("qwen3")
    tensors = oracle.tensors() | {name: tensor}
    path = oracle.folder(tmp_path, {k: t for k, t in tensors.items() if t is not None})
    assert message in refusal(lambda: build(Options(), target_of(path)))


@pytest.mark.parametrize("num_reused", [0, 9, 10])
def test_rows_of_a_reused_prefix_are_found_again(num_reused, tmp_path):
    """As if all of the prompt had been read; a prefix that no text has read is missing."""
    oracle = Oracle("qwen3")
    target, states = target_of(oracle.folder(tmp_path)), oracle.states(PROMPT).numpy()
    drafter = new_drafter(target)
    drafter.end(begun(drafter, states))
    whole = new_drafter(target)
    text = [*PROMPT, 13]
    expected = whole.propose([begun(whole, states, text)], [6])[0]
    seq = Seq(1, text, GREEDY, 0)
    drafter.begin(seq, Outcome((), (13,), hidden=states[num_reused:]))
    assert drafter.slots[1].is_complete
    assert drafter.propose([seq], [6])[0] == expected
    drafter.begin(Seq(2, [9] * 12, GREEDY, 0), Outcome((), (9,), hidden=states[num_reused:]))
    assert drafter.slots[2].is_complete is (num_reused == 0)


def test_within_tight_memory_no_token_changes(trained, tmp_path):
    target = target_of(trained.folder(tmp_path))
    tight = replace(target, cache=target.model.new_cache(4, 128, num_blocks=3))
    check_lossless(tight, ["mtp:num_draft=6"], roomy=target)


def test_it_is_counted(tmp_path):
    """Weights, a copy of the head's rows, and keys and values of every row."""
    oracle = Oracle("qwen3", **NATIVE)
    target = target_of(oracle.folder(tmp_path))
    small, large = (new_drafter(target, quant=quant).memory(2, 100) for quant in ("int4", "none"))
    assert small.weights < large.weights
    assert large.kv >= 2 * 2 * 100 * 2 * 2 * 16  # keys and values in fp16
    cut = build(Options(draft_vocab="8", quant="none"), target).memory(2, 100)
    assert cut.weights > large.weights
