"""Which drafter is meant, in vLLM's, Hugging Face's, SGLang's and llama.cpp's words; errors quote those words."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import spellings
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.drafting.spec import DrafterSpec

SMALL = "draft_model:model=s.gguf"
CONFIGS = [
    ({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
     "prompt_lookup:ngram_max=4,ngram_min=2,num_draft=5"),
    ({"model": "[ngram]", "num_speculative_tokens": 3}, "prompt_lookup:num_draft=3"),
    ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup:ngram_max=5,ngram_min=5"),
    ({"method": "suffix"}, "suffix"),
    ({"method": "suffix", "suffix_decoding_max_tree_depth": 32, "suffix_decoding_max_spec_factor": 2.0,
      "suffix_decoding_min_token_prob": 0.2, "suffix_decoding_max_cached_requests": 100},
     "suffix:max_depth=32,factor=2.0,min_token_prob=0.2"),
    ({"model": "s.gguf"}, SMALL),
    ({"model": "s.gguf", "method": "draft_model", "num_speculative_tokens": 3, "max_model_len": 2048,
      "draft_tensor_parallel_size": 1, "disable_by_batch_size": 8, "quantization": "int8",
      "rejection_sample_method": "strict", "parallel_drafting": False, "revision": None},
     "draft_model:num_draft=3,model=s.gguf,quant=int8"),
    ({"model": "s.gguf", "num_speculative_tokens_per_batch_size": [[1, 4, 6], [5, 8, 2]]},
     "draft_model:num_draft=6,model=s.gguf"),
    ({"speculative_model": "s.gguf", "num_speculative_tokens": 2}, "draft_model:num_draft=2,model=s.gguf"),
    ({"ngram_prompt_lookup_max": 4}, "prompt_lookup:ngram_max=4"),
    ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4,
      "speculative_ngram_max_match_window_size": 2}, "prompt_lookup:ngram_max=2,num_draft=4"),
    ({"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "s.gguf",
      "speculative_num_steps": 3, "speculative_eagle_topk": 1}, SMALL),
    ({"assistant_model": "s.gguf", "num_assistant_tokens": 3, "assistant_confidence_threshold": 0.4,
      "num_assistant_tokens_schedule": "constant"},
     "draft_model:num_draft=3,min_confidence=0.4,model=s.gguf"),
    ({"assistant_early_exit": 4}, "early_exit:exit=4"),
    ({"prompt_lookup_num_tokens": 6, "max_matching_ngram_size": 2}, "prompt_lookup:ngram_max=2,num_draft=6"),
    ({"spec_type": "ngram-simple", "spec_draft_n_max": 4}, "prompt_lookup:num_draft=4"),
    ({"spec_type": "ngram-simple,draft-simple", "model_draft": "s.gguf"}, f"prompt_lookup++{SMALL}"),
    ({"spec_type": "draft,ngram-cache", "model_draft": "s.gguf"}, f"suffix++{SMALL}"),
    ({"model_draft": "s.gguf", "draft_p_min": "0.75"}, "draft_model:min_confidence=0.75,model=s.gguf"),
    ({"draft_p_min": 0.5}, "recycling:min_chance=0.5"),
    ({"draft_p_min": "0.0"}, "recycling"),
    ({"method": "ngram", "draft_p_min": 0}, "prompt_lookup"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "meant"), CONFIGS, ids=lambda value: str(value)[:40])
def test_a_configuration_means_the_same_in_all_places(config: dict, meant: str) -> None:
    assert DrafterSpec.of(config).text() == meant
    beside = DrafterSpec.of_config(EngineConfig.of(speculative_config=json.dumps(config)))
    assert beside.text() == meant
    if "model" not in config and "quantization" not in config:
        keys = {("drafter" if key == "method" else key): value for key, value in config.items()}
        assert DrafterSpec.of_config(EngineConfig.of(**keys)).text() == meant


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "dflash"}, "'dflash' is not supported yet .there are: draft_model"),
        ({"method": "medusa"}, "drafter 'medusa': option 'model' must be given"),
        ({"method": "deepseek_mtp"}, "'deepseek_mtp' is not supported yet"),
        ({"spec_type": "draft-eagle3"}, "drafter 'eagle3': option 'model' must be given"),
        ({"speculative_algorithm": "EAGLE"}, "'EAGLE' is not supported yet"),
        ({"model": "org/EAGLE-Llama-8B"}, "model='org/EAGLE-Llama-8B' drafts by 'eagle'"),
        ({"assistant_model": "org/dflash-7b"}, "assistant_model='org/dflash-7b' drafts by 'dflash'"),
        ({"method": "ngrm"}, "unknown drafter 'ngrm': did you mean 'ngram'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "'prompt_lookup': num_speculative_tokens must be at"),
        ({"method": "ngram", "num_speculative_tokens": "x"}, "option 'num_speculative_tokens' must be"),
        ({"method": "ngram", "prompt_lookup_max": 1, "prompt_lookup_min": 2}, "prompt_lookup_min=2"),
        ({"model": "s", "quantization": "awq"}, "option 'quantization' must be .*got 'awq'"),
        ({"method": "ngram", "suffix_decoding_max_tree_depth": 3},
         "drafter 'ngram' has no option suffix_decoding_max_tree_depth=3 .*have it: recycling, suffix"),
        ({"method": "suffix", "assistant_early_exit": 3}, "'suffix' has no option assistant_early_exit=3"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size=2 is not possible here"),
        ({"rejection_sample_method": "synthetic"}, "rejection_sample_method='synthetic' is not possible"),
        ({"synthetic_acceptance_rate": 0.5}, "synthetic_acceptance_rate=0.5 is not possible here"),
        ({"use_heterogeneous_vocab": True}, "use_heterogeneous_vocab=True is not possible here"),
        ({"num_speculative_tokens_per_batch_size": [3]}, r"must be \[\[from, to, tokens\]"),
        ({"num_speculative_tokens": 2, "num_assistant_tokens": 3}, "num_speculative_tokens or num_assist"),
        ({"method": "suffix", "spec_type": "ngram"}, "'ngram' and 'suffix': give one drafter"),
        ({"num_spec_tokens": 2},
         "'num_spec_tokens': did you mean 'num_speculative_tokens'. .allowed for 'recycling'"),
        ({"method": "draft_model"}, "option 'model' must be given"),
    ],
)  # fmt: skip
def test_a_mistake_quotes_what_was_typed(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        DrafterSpec.of(config).text()
    assert "\n" not in str(caught.value)


def test_a_head_for_another_model_is_known_by_its_folder(tmp_path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["DFlashDraftModel"]}'
    )
    with pytest.raises(ConfigError, match="drafts by 'dflash', which is not supported yet"):
        DrafterSpec.of({"model": str(tmp_path)})
    for kind, config in (
        ("eagle3", '{"model_type": "llama", "architectures": ["Eagle3Model"]}'),
        ("medusa", '{"model_type": "llama", "architectures": ["MedusaModel"]}'),
        ("mlp_speculator", '{"architectures": ["MLPSpeculatorPreTrainedModel"]}'),
    ):
        (tmp_path / "config.json").write_text(config)
        assert DrafterSpec.of({"model": str(tmp_path)}).name == kind
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert DrafterSpec.of({"model": str(tmp_path)}).name == "draft_model"


def test_a_drafter_without_the_option_says_who_has_it() -> None:
    with pytest.raises(
        ConfigError, match=r"'none' has no option num_draft=4 \(it has: none\); these"
    ):
        DrafterSpec.of("none", num_draft=4)
    with pytest.raises(ConfigError, match="'suffix' has no option draft_model='x'"):
        DrafterSpec.of("suffix", draft_model="x")
    with pytest.raises(
        ConfigError, match=r"'suffix\+\+lookahead' has no option assistant_early_exit"
    ):
        DrafterSpec.of("suffix++lookahead", assistant_early_exit=3)
    parts = DrafterSpec.of(
        "suffix++draft_model", **{"--model-draft": "x.gguf", "--draft-max": 3}
    ).parts
    assert [part.text() for part in parts] == [
        "suffix:num_draft=3",
        "draft_model:num_draft=3,model=x.gguf",
    ]


@pytest.mark.parametrize(
    ("config", "meant"),
    [
        ({"draft_model": "s", "draft_quant": "int4", "draft_head_bits": 8},
         "draft_model:model=s,quant=int4,head_bits=8"),
        ({"drafter": "draft_model:model=s,draft_quant=int4"}, "draft_model:model=s,quant=int4"),
        ({"drafter": "mlp_speculator++recycling", "draft_quant": "int8"}, "mlp_speculator:quant=int8++recycling"),
        ({"drafter": "suffix++medusa:model=untrained", "draft_quant": "none"},
         "suffix++medusa:model=untrained,quant=none"),
    ],
)  # fmt: skip
def test_a_draft_is_rounded_by_one_word(config: dict, meant: str) -> None:
    assert DrafterSpec.of_config(EngineConfig.of(**config)).text() == meant


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"draft_quant": "int8"}, "no option draft_quant='int8' .*: draft_model, eagle3, medusa, mlp_speculator"),
        ({"drafter": "mlp_speculator", "draft_head_bits": 4}, "no option draft_head_bits=4 .*have it: draft_model"),
        ({"draft_model": "s", "draft_quant": "int3"}, "'draft_quant' must be none or int8 or int4, got 'int3'"),
        ({"draft_model": "s", "draft_head_bits": 5}, "option 'draft_head_bits' must be 4 or 8 or none, got 5"),
        ({"drafter": "draft_model:model=s,quant=int8,draft_quant=int4"}, "give quant or draft_quant, not both"),
    ],
)  # fmt: skip
def test_a_draft_that_cannot_be_rounded_so_is_refused(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DrafterSpec.of_config(EngineConfig.of(**config))


@given(st.sampled_from([*spellings.METHODS]), st.booleans(), st.booleans())
def test_a_method_is_read_in_any_case_and_with_either_dash(name, is_upper, is_dashed) -> None:
    typed = name.replace("_", "-") if is_dashed else name.replace("-", "_")
    spec = DrafterSpec.of({"method": typed.upper() if is_upper else typed})
    assert spec.name == spellings.METHODS[name]
