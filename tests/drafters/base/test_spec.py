"""Which drafter is meant, with which options; an error says which drafter has an option."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.drafters.base.contract import Target, TreeSize
from forerun.drafters.base.spec import DrafterSpec
from forerun.drafters.recycling import Recycling
from tests.tiny import tiny_model

TARGET = Target(tiny_model(3), None, max_num_seqs=4, max_len=256)
AS_PARTNER = "num_draft=7,num_steps=7"
"""Its defaults beside others."""


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"model": "s.gguf"}, f"draft_model:model=s.gguf,{AS_PARTNER}++recycling"),
        ("auto:partner=s.gguf", f"draft_model:model=s.gguf,{AS_PARTNER}++recycling"),
        ({"ngram_max": 4}, "prompt_lookup:ngram_max=4"),
        ({"method": "Prompt-Lookup", "num-draft": "3"}, "prompt_lookup:num_draft=3"),
        ({"method": "suffix++recycling", "offset": 9.0}, "suffix:offset=9.0++recycling"),
        ({"num_draft": None}, "recycling"),
    ],
)
def test_options_say_which_drafter_is_meant(given: dict, meant: str) -> None:
    assert DrafterSpec.of(given).text() == meant


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "hydra"}, "unknown drafter 'hydra' .allowed: auto, dflash"),
        ({"method": "sufix"}, "unknown drafter 'sufix': did you mean 'suffix'"),
        ({"method": "draft_model"}, "option 'model' must be given"),
        ({"model": "org/EAGLE-Llama-8B"}, "model='org/EAGLE-Llama-8B' drafts by 'eagle'"),
        ({"num_drafts": 2}, "'num_drafts': did you mean 'num_draft'. .allowed for 'recycling'"),
        ({"method": "none", "num_draft": 4}, r"'none' has no option num_draft=4 \(it has: none\); these"),
        ({"method": "suffix++lookahead", "table": 3}, r"'suffix\+\+lookahead' has no option table=3"),
        ({"method": "prompt_lookup", "ngram_max": 1, "ngram_min": 2}, "ngram_min"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_in_one_line(given: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        DrafterSpec.of(given).text()
    assert "\n" not in str(caught.value)


def test_a_head_for_another_model_is_known_by_its_folder(tmp_path) -> None:
    for kind, config in (
        ("eagle3", '{"model_type": "llama", "architectures": ["Eagle3Model"]}'),
        ("medusa", '{"model_type": "llama", "architectures": ["MedusaModel"]}'),
        ("dflash", '{"model_type": "qwen3", "architectures": ["DFlashDraftModel"]}'),
        ("dflash", '{"model_type": "qwen3", "architectures": ["Lfm2DSparkDraftModel"]}'),
        ("dflash", '{"architectures": ["Other"], "speculators_model_type": "dspark"}'),
        ("mlp_speculator", '{"architectures": ["MLPSpeculatorPreTrainedModel"]}'),
    ):
        (tmp_path / "config.json").write_text(config)
        assert DrafterSpec.of({"model": str(tmp_path)}).name == f"{kind}++recycling"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert DrafterSpec.of({"model": str(tmp_path)}).name == "draft_model++recycling"


@pytest.mark.parametrize(
    ("config", "meant"),
    [
        ({"draft_model": "s", "draft_quant": "int4", "draft_head_bits": 8},
         f"draft_model:model=s,{AS_PARTNER},head_bits=8++recycling"),
        ({"drafter": "mlp_speculator++recycling", "draft_quant": "int8"}, "mlp_speculator:quant=int8++recycling"),
        ({"drafter": "suffix++medusa:model=untrained", "draft_quant": "none"},
         "suffix++medusa:model=untrained,quant=none"),
    ],
)  # fmt: skip
def test_a_draft_is_rounded_by_one_word(config: dict, meant: str) -> None:
    assert DrafterSpec.of_config(EngineConfig(**config)).text() == meant


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"draft_quant": "int8"},
         r"no option quant='int8' .*: dflash, draft_model, eagle3, gemma4_assistant, medusa, mlp_speculator, mtp "
         r"\(given as draft_quant\)"),
        ({"drafter": "mlp_speculator", "draft_head_bits": 4},
         r"no option head_bits=4 .*have it: draft_model \(given as draft_head_bits\)"),
        ({"draft_model": "s", "draft_quant": "int3"},
         r"'quant' must be none or int8 or int4, got 'int3' \(given as draft_quant\)"),
        ({"draft_model": "s", "draft_head_bits": 5}, "option 'head_bits' must be 4 or 8 or none, got 5"),
        ({"drafter": "draft_model:model=s,quant=int8", "draft_quant": "int4"}, "option 'quant' is given twice"),
    ],
)  # fmt: skip
def test_a_draft_that_cannot_be_rounded_so_is_refused(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DrafterSpec.of_config(EngineConfig(**config))


@pytest.mark.parametrize(
    ("config", "text", "size"),
    [
        ({}, "recycling", (15, 0.02)),
        ({}, "recycling:num_draft=3", (3, 0.02)),
        ({}, "recycling:min_chance=0.2", (15, 0.2)),
        ({"controller": False}, "recycling", (7, 0.1)),
        ({"memory_budget": "2GiB"}, "recycling", (7, 0.1)),
        ({"controller": False}, "recycling:num_draft=31", (31, 0.1)),
    ],
)
def test_trees_are_large_where_a_controller_cuts_them(config, text, size):
    target = replace(TARGET, tree_size=TreeSize.of(EngineConfig(**config)))
    drafter = DrafterSpec.of(text).build(target)
    assert isinstance(drafter, Recycling)
    assert (drafter.max_nodes, *drafter.options.tree_size) == (size[0], *size)
