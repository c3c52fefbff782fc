"""Gemma 4's assistants: transformers' own gives the same logits at every step, from folders and from GGUF files."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import json
from dataclasses import replace

import gguf
import numpy as np
import safetensors.torch
import torch
import transformers
from torch.nn import functional

from forerun.core.batch import Batch, Segment
from forerun.core.errors import LoadError
from forerun.core.types import Outcome, Seq
from forerun.drafters.base.contract import Target
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.gemma4_assistant import Options, build
from forerun.model.loader import load_model
from forerun.weights.checkpoint import open_checkpoint
from tests.drafters.helpers import GREEDY, SAMPLED, WANTED, check_lossless, refusal
from tests.model import gguf_files
from tests.model.gguf_converter import as_gguf
from tests.model.gguf_spellings import GEMMA4
from tests.model.tiny import FAMILIES, VOCAB, checkpoint_of, hf_model, load_torch, randomize
from tests.oracles.growth import Step
from tests.tiny import tiny_model

PROMPT = [5, 17, 3, 44, 21, 8, 30, 2, 59, 11, 7]
WIDE = 64
"""A window that no text here fills."""
NATIVE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 32,
}
LAYERS = ["sliding_attention", "sliding_attention", "full_attention"]


@pytest.fixture(autouse=True)
def shares_everything(monkeypatch):
    share_everything(monkeypatch)


def share_everything(monkeypatch):
    """transformers 5.23 refuses a model whose layers all share, which every assistant is, and hands out no keys and
    values of a model in which none does."""

    def modes(self):
        kinds = self.layer_types
        if self.num_kv_shared_layers == len(kinds):
            return ["reuse"] * len(kinds)
        own = kinds[: len(kinds) - self.num_kv_shared_layers]
        last = [len(own) - 1 - own[::-1].index(kind) for kind in {*own}]
        return [
            "reuse" if i >= len(own) else "store" if i in last else None for i in range(len(kinds))
        ]

    monkeypatch.setattr(transformers.Gemma4TextConfig, "kv_sharing_modes", property(modes))


def gemma(family="gemma4", **changes):
    """A random Gemma 4 and what it was made of."""
    changes = {"sliding_window": WIDE, **NATIVE, **changes}
    model = hf_model(family, **changes)
    model.given = {**FAMILIES[family][2], **changes}
    return model


def hf_assistant(model, clusters=None, window=None, vocab_size=VOCAB, **changes):
    """A random assistant of a Hugging Face Gemma 4."""
    given = {"sliding_window": WIDE, **model.given}
    unshared = (
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rope_parameters",
    )
    text = {key: given[key] for key in (*unshared, "global_head_dim", "max_position_embeddings")}
    text |= {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "layer_types": LAYERS,
    }
    text |= {
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "num_kv_shared_layers": 3,
    }
    text |= {"sliding_window": window or WIDE, "final_logit_softcapping": 3.0}
    text |= {"vocab_size": vocab_size, **changes}
    head = {"use_ordered_embeddings": clusters is not None}
    if clusters is not None:
        head |= {"num_centroids": clusters[0], "centroid_intermediate_top_k": clusters[1]}
    config = transformers.Gemma4AssistantConfig(
        text_config=transformers.Gemma4TextConfig(**text),
        backbone_hidden_size=model.config.hidden_size,
        attn_implementation="eager",
        **head,
    )
    torch.manual_seed(11)
    assistant = transformers.Gemma4AssistantForCausalLM(config).eval().float()
    randomize(assistant)
    if clusters is not None:
        order = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(2))
        assistant.masked_embedding.token_ordering.copy_(order)
    assistant.tie_weights()
    return assistant


def folder_of(assistant, path):
    """Write an assistant as its repository has it."""
    tensors = {k: v.detach().contiguous().clone() for k, v in assistant.state_dict().items()}
    del tensors["lm_head.weight"]
    path.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = assistant.config.to_dict() | {"architectures": [type(assistant).__name__]}
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def oracle(model, assistant, tokens):
    """The assistant's logits (V,) after a path of tokens below the prompt: each step's, by transformers."""
    n = len(PROMPT) - 1
    with torch.inference_mode():
        seen = model(
            torch.tensor([PROMPT[:-1]]),
            use_cache=False,
            output_hidden_states=True,
            return_shared_kv_states=True,
        )
        hidden = seen.hidden_states[-1][:, -1:]
        for token in [PROMPT[-1], *tokens]:
            embedded = model.get_input_embeddings()(torch.tensor([[token]]))
            output = assistant(
                inputs_embeds=torch.cat([embedded, hidden], -1),
                position_ids=torch.tensor([[n]]),
                shared_kv_states=dict(seen.shared_kv_states),
            )
            hidden = output.last_hidden_state
    return output.logits[0, -1].numpy()


def target_of(model, num_blocks=None):
    loaded = load_model(checkpoint_of(model))
    return Target(loaded, None, 4, 128, loaded.new_cache(4, 128, "fp32", num_blocks))


def begun(drafter, target, tokens=PROMPT):
    """A sequence whose prompt, all tokens but the last, is in the target's cache."""
    cache, prompt = target.cache, tuple(tokens[:-1])
    slot, _ = cache.open(tokens[:-1], reuse=False)
    hidden = target.model.forward(Batch((Segment(slot, 0, prompt),)), cache).last
    cache.keep(slot, range(len(prompt)))
    seq = Seq(0, [*prompt], GREEDY, 0, slot=slot)
    seq.tokens.append(tokens[-1])
    drafter.begin(seq, Outcome((), (tokens[-1],), hidden=hidden))
    return seq


def check_steps(target, path, expected, atol):
    """A tree of three levels: after every step the oracle's logits along that path."""
    drafter = build(Options(model=path, quant="none", min_chance=0), target)
    take = drafter.new_draft([begun(drafter, target)], [8])
    steps = [(PROMPT[-1], -1), (9, 0), (33, 1), (50, 0), (12, 3), (4, 2)]
    paths = [[]]
    for number, (token, parent) in enumerate(steps):
        if number:
            paths.append([*paths[parent], token])
        (scores,) = take(number, [Step(0, parent, token, len(paths[-1]))])
        logits, wanted = scores.dense(), expected(paths[-1])
        is_scored = logits > -np.inf
        assert np.allclose(logits[is_scored], wanted[is_scored], atol=atol)
        assert bool((wanted[~is_scored] <= wanted[is_scored].min()).all())
        assert int(is_scored.sum()) == (
            len(logits) if scores.tokens is None else len(scores.tokens)
        )
    return scores


CLUSTERS = (None, (6, 2))


@pytest.mark.parametrize("clusters", CLUSTERS, ids=["all tokens", "clusters"])
@pytest.mark.parametrize("family", ["gemma4", "gemma4_moe"])
def test_each_step_gives_the_logits_of_transformers(family, clusters, tmp_path):
    size = 60 if clusters else VOCAB
    model = gemma(
        family, vocab_size=size, vocab_size_per_layer_input=size, moe_intermediate_size=32
    )
    shape = (
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1} if family != "gemma4" else {}
    )
    assistant = hf_assistant(model, clusters, vocab_size=size, **shape)
    path = folder_of(assistant, tmp_path)
    scores = check_steps(target_of(model), path, lambda p: oracle(model, assistant, p), 5e-3)
    if clusters:
        assert len(scores.tokens) == 20  # two of six clusters


def test_a_sliding_layer_sees_the_positions_of_its_window(tmp_path):
    """A row at position n with a window of W sees n - W + 1 to n - 1; transformers counts back from n - 1, W + 1 of
    them, so that its window of W - 2 is ours of W."""
    model = gemma()
    ours, theirs = (hf_assistant(model, window=window) for window in (6, 4))
    theirs.load_state_dict(ours.state_dict())
    path = folder_of(ours, tmp_path)
    check_steps(target_of(model), path, lambda p: oracle(model, theirs, p), 5e-3)
    with pytest.raises(AssertionError):
        check_steps(target_of(model), path, lambda p: oracle(model, ours, p), 5e-3)


def gguf_of(assistant, path, **changes):
    """Write an assistant as llama.cpp's converter does: projections by other names, no clusters."""
    inner = assistant.config.get_text_config()
    body = as_gguf(_Body(assistant, inner), "gemma4", {**GEMMA4_ASSISTANT, **changes})
    tensors = dict(body.tensors)
    tensors["rope_freqs.weight"] = torch.tensor([1.0] * 8 + [1e30] * 8)
    for part in ("pre", "post"):
        weight = assistant.state_dict()[f"{part}_projection.weight"]
        tensors[f"nextn.{part}_projection.weight"] = weight
    config = {k.replace("gemma4.", "gemma4-assistant.", 1): v for k, v in body.config.items()}
    config |= {
        "gemma4-assistant.nextn_predict_layers": 3,
        "gemma4-assistant.embedding_length_out": 64,
    }
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    gguf_files.add(writer, replace(body, config=config, tensors=tensors))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


GEMMA4_ASSISTANT = {
    key: value for key, value in GEMMA4.items() if key not in ("final_logit_softcapping",)
} | {
    "attention.sliding_window": WIDE,
    "attention.sliding_window_pattern": [True, True, False],
    "attention.head_count_kv": [2, 2, 2],
    "attention.shared_kv_layers": 3,
    "feed_forward_length": [48, 48, 48],
    **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), 32),
    **dict.fromkeys(
        ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"), 16
    ),
}


class _Body:
    """The layers of an assistant, as `as_gguf` takes a model."""

    def __init__(self, assistant, config):
        self.config = config
        self.tensors = {
            name: tensor
            for name, tensor in assistant.state_dict().items()
            if name.startswith("model.") and "rotary" not in name
        }

    def state_dict(self):
        return self.tensors


def test_a_gguf_file_gives_them_too(tmp_path):
    model = gemma()
    assistant = hf_assistant(model)
    path = gguf_of(assistant, tmp_path / "assistant.gguf")
    check_steps(target_of(model), path, lambda p: oracle(model, assistant, p), 5e-3)


@pytest.fixture(scope="module")
def trained():
    """A Gemma 4 and its assistant that learned for a few seconds to count on by the step of a text's first tokens."""
    with pytest.MonkeyPatch.context() as patch:
        share_everything(patch)
        size = {"vocab_size": 32, "vocab_size_per_layer_input": 32, "num_hidden_layers": 4}
        kinds = ["sliding_attention", "full_attention"] * 2
        model = gemma(**NATIVE, **size, layer_types=kinds, final_logit_softcapping=20.0)
        assistant = hf_assistant(model, (8, 4), vocab_size=32)
        learn_to_count(model, assistant)
        yield model, assistant


def learn_to_count(model, assistant):
    optimizer = torch.optim.Adam([*model.parameters(), *assistant.parameters()], lr=3e-3)
    generator = torch.Generator().manual_seed(3)
    mask = torch.full((17, 17), -torch.inf).triu(1)[None, None]
    masks = {"full_attention": mask, "sliding_attention": mask}
    for _ in range(100):
        first, by = torch.randint(0, 32, (2, 24, 1), generator=generator)
        texts = (first + by % 5 * torch.arange(18)) % 32
        seen = model.get_decoder()(texts[:, :-1], use_cache=False, return_shared_kv_states=True)
        states, shared = seen.last_hidden_state, dict(seen.shared_kv_states)
        logits = 20 * torch.tanh(model.lm_head(states) / 20)
        embedded = model.get_input_embeddings()(texts[:, 1:])
        output = assistant.model(
            inputs_embeds=assistant.pre_projection(torch.cat([embedded, states], -1)),
            attention_mask=masks,
            position_ids=torch.arange(1, 18)[None],
            shared_kv_states={k: (a.detach(), b.detach()) for k, (a, b) in shared.items()},
            use_cache=False,
            output_hidden_states=True,  # else rows are left out
        ).last_hidden_state
        guessed = assistant.lm_head(output)[:, :-1]
        loss = functional.cross_entropy(logits[:, 1:].flatten(0, 1), texts[:, 2:].flatten())
        loss = loss + functional.cross_entropy(guessed.flatten(0, 1), texts[:, 2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Each cluster's centroid is the mean of its tokens' rows: then the nearest ones have the likeliest tokens.
    order = assistant.masked_embedding.token_ordering.view(8, 4)
    with torch.no_grad():
        assistant.masked_embedding.centroids.weight.copy_(assistant.lm_head.weight[order].mean(1))


@pytest.mark.parametrize("params", [WANTED, SAMPLED], ids=["greedy", "sampled"])
def test_a_trained_assistant_is_often_right_and_changes_no_token(trained, tmp_path, params):
    model, assistant = trained
    path = folder_of(assistant, tmp_path)
    alone = f"gemma4_assistant:model={path}"
    drafters = (f"{alone},num_draft=6", f"{alone}++recycling:table=none")
    check_lossless(target_of(model), drafters, params, tau=1.5)


def test_within_tight_memory_no_token_changes(trained, tmp_path):
    model, assistant = trained
    path = folder_of(assistant, tmp_path)
    tight = target_of(model, num_blocks=3)
    check_lossless(tight, [f"gemma4_assistant:model={path}"], roomy=target_of(model))


def refused(path, target):
    return refusal(lambda: build(Options(model=path), target))


def test_an_assistant_of_another_target_is_told_in_a_line(tmp_path):
    model = gemma()
    path = folder_of(hf_assistant(model), tmp_path / "assistant")
    other = tiny_model(3)
    target = Target(other, None, 4, 64, other.new_cache(4, 64))
    assert "it reads the keys and values of a Gemma 4, and this is a llama" in refused(path, target)
    wide = target_of(gemma(hidden_size=128, intermediate_size=96))
    assert "'pre_projection.weight' should be (32, 256), but is (32, 128)" in refused(path, wide)
    heads = target_of(gemma(global_head_dim=16))
    assert "its layer 2 reads 2 heads of 32 numbers, and this model's last layer" in refused(
        path, heads
    )
    small = folder_of(hf_assistant(model, vocab_size=40), tmp_path / "small")
    assert "it guesses 40 tokens, and this model's vocabulary has 61" in refused(
        small, target_of(model)
    )
    plain = tmp_path / "plain"
    plain.mkdir()
    model.save_pretrained(plain)
    assert "which is not an assistant of Gemma 4" in refused(str(plain), target_of(model))


def test_clusters_that_are_wrong_are_told(tmp_path):
    model = gemma(vocab_size=60, vocab_size_per_layer_input=60)
    assistant = hf_assistant(model, (6, 2), vocab_size=60)
    assistant.masked_embedding.token_ordering[0] = assistant.masked_embedding.token_ordering[1]
    path = folder_of(assistant, tmp_path)
    assert "must have each of 60 tokens once, in 6 clusters" in refused(path, target_of(model))


def test_an_assistant_is_no_model_by_itself(tmp_path):
    model = gemma()
    path = folder_of(hf_assistant(model), tmp_path)
    with pytest.raises(LoadError, match="is an assistant: it drafts for the Gemma 4 that it was"):
        load_torch(open_checkpoint(path))


def test_a_path_alone_says_that_it_is_one(tmp_path):
    assistant = hf_assistant(gemma())
    for path in (
        folder_of(assistant, tmp_path / "folder"),
        gguf_of(assistant, tmp_path / "a.gguf"),
    ):
        assert DrafterSpec.of("auto", model=path).name == "gemma4_assistant++recycling"
    assert (
        DrafterSpec.of("auto", model="google/gemma-4-e2b-it-assistant").name
        == "gemma4_assistant++recycling"
    )
