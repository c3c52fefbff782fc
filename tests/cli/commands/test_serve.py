"""`forerun serve`: drafts that are not shared, and a model that there is not."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from forerun.cli.commands.serve import _model_config, _of_its_own, _source, without_sharing
from forerun.core import registry
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.core.params import SamplingParams
from forerun.engine.planner import DEFAULT_MAX_LEN, SERVED_MAX_LEN, max_len_of, num_blocks_of
from forerun.llm import LLM, planner_of
from forerun.model.cache.blocks import blocks_of

PROMPT = "Names of rivers, one after the other:"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("auto", "suffix:shared_tokens=0"),
        ("suffix", "suffix:shared_tokens=0"),
        ("none", "none"),
        ("prompt_lookup", "prompt_lookup"),
        ("suffix++lookahead", "suffix:shared_tokens=0++lookahead"),
        ("suffix:num_draft=3", "suffix:num_draft=3,shared_tokens=0"),
        ("draft_model:model=self", "draft_model:model=self"),
        ("gemma4_assistant:model=a", "gemma4_assistant:model=a"),
        ("mlp_speculator", "mlp_speculator"),
        ("mtp++suffix", "mtp++suffix:shared_tokens=0"),
    ],
)
def test_drafters_that_share_are_replaced(given, kept):
    assert without_sharing(EngineConfig(drafter=given)).drafter == kept


def test_what_learns_from_all_requests_is_refused():
    with pytest.raises(ConfigError, match="--no-shared-drafts"):
        without_sharing(EngineConfig(drafter="recycling"))


def test_a_drafter_that_shares_is_named_with_those_that_do_not(tmp_path):
    """Nothing is known of a method that does not say it."""
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import dataclass\n"
        "from forerun.drafters.base.contract import Drafter\n"
        "@dataclass(frozen=True)\nclass Options: pass\n"
        "def build(options, target): return Drafter()\n"
    )
    for given in ("mtp++recycling", str(own)):
        with pytest.raises(ConfigError, match="can draft from other requests' text") as told:
            without_sharing(EngineConfig(drafter=given))
        allowed = str(told.value).rpartition("allowed: ")[2].strip("()").split(", ")
        assert {*allowed} == {*registry.names("drafters")} - {"recycling"}  # also eagle3, medusa


def test_a_request_leaves_nothing_for_the_next_one_to_draft_from(default_model):
    llm = LLM(str(default_model), controller=False, max_model_len=512, max_num_seqs=4)
    drafted = {}
    for drafter in ("suffix", "suffix:shared_tokens=0"):
        own = llm.with_drafter(drafter)
        for turn in range(2):
            request = own.submit(PROMPT, SamplingParams(temperature=0, max_tokens=24))
            request.wait()
            drafted[drafter, turn] = request.runs[0].stats.accepted
    assert drafted["suffix", 1] > drafted["suffix", 0]
    assert drafted["suffix:shared_tokens=0", 1] == drafted["suffix:shared_tokens=0", 0]


def test_a_model_that_there_is_not_is_told_before_anything_listens(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    for model in ("no-such-model", tmp_path / "none.gguf", tmp_path / "bad.gguf"):
        command = [sys.executable, "-m", "forerun", "serve", str(model), "--port", "0"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert found.returncode == 2
        assert found.stderr.startswith("error: ")
        assert len(found.stderr.splitlines()) == 1


def test_a_server_has_long_contexts_in_the_memory_of_short_ones(default_model):
    config = EngineConfig(model=str(default_model), is_server=True)
    model = _model_config(config)
    longest = model.max_position
    assert longest > DEFAULT_MAX_LEN
    assert max_len_of(replace(config, is_server=False), model) == DEFAULT_MAX_LEN
    assert max_len_of(config, model) == longest
    assert max_len_of(config, replace(model, max_position=1 << 20)) == SERVED_MAX_LEN
    short = replace(config, max_model_len=DEFAULT_MAX_LEN)
    blocks = num_blocks_of(config, longest)
    assert blocks == config.max_num_seqs * blocks_of(DEFAULT_MAX_LEN)
    assert num_blocks_of(short, DEFAULT_MAX_LEN) is None
    assert num_blocks_of(replace(config, max_num_seqs=1), longest) == blocks_of(longest)
    whole = planner_of(short).plan().components["kv"]
    assert planner_of(config).plan().components["kv"] == whole


def test_a_budget_shortens_a_context_that_nobody_asked_for(default_model):
    config = EngineConfig(model=str(default_model), is_server=True, drafter="none")
    planner = planner_of(config)
    longest = planner.workload.max_len
    assert planner.fit(1 << 34).workload.max_len == longest
    tight = planner.fit(planner.smallest_budget())
    assert tight.workload.max_len == DEFAULT_MAX_LEN
    asked = planner_of(replace(config, max_model_len=longest))
    assert asked.smallest_budget() > planner.smallest_budget()


def test_each_of_several_models_keeps_its_own_context(default_model):
    config = EngineConfig(model=str(default_model), is_server=True, max_model_len=1 << 20)
    longest = _model_config(config).max_position
    assert _of_its_own(config).max_model_len == longest
    assert _source(config, None, is_one=False).max_len() == longest
    shorter = replace(config, max_model_len=64)
    assert _of_its_own(shorter) == shorter
