"""A prompt that another process has read is not read again, and the answers are those of a first reading."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from forerun import LLM, SamplingParams
from forerun.core.errors import ConfigError
from forerun.core.types import LAST_HIDDEN, LAST_ROW, NO_FEATURES
from forerun.drafters.base.contract import Drafter
from forerun.engine.engine import Engine
from forerun.engine.outputs import RequestOutput
from forerun.engine.stats import SpecStats
from forerun.model.cache.folder import PromptFolder
from forerun.model.cache.store import PromptStore, finish_writing
from forerun.model.kernels import native
from tests.engine.harness import LOOPING, complete, drain, engine_for
from tests.engine.kinds import TEXTS, write
from tests.tiny import tiny_model

pytestmark = pytest.mark.skipif(native.reason() is not None, reason="no native kernels")

GREEDY = SamplingParams(temperature=0, max_tokens=70, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.8, top_k=12, seed=5)
OTHERS = ("recycling", "draft_model:model=self,num_draft=4")


@pytest.fixture(scope="module")
def files(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes each kind's file once."""
    folder = tmp_path_factory.mktemp("kinds")
    return cache(lambda kind: write(kind, default_model, folder / f"{kind}.gguf"))


def opened(path: Path, drafter: str = "none", **options: Any) -> LLM:
    settings = {"max_model_len": 512, "max_num_seqs": 3} | options
    return LLM(str(path), drafter=drafter, **settings)


def tokens_of(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [tuple(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(autouse=True)
def reads_at_any_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models compute a block about as fast as it is read."""
    monkeypatch.setattr(PromptStore, "_is_slow", lambda self, nbytes, block_s: False)


@pytest.mark.parametrize(
    "drafter", ["suffix", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
@pytest.mark.parametrize(
    "kind",
    [
        "qwen3_next",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("gemma4", "deepseek_v3", "nemotron_h_moe")
        ),
    ],
)
def test_drafts_over_prompts_from_disk_change_no_token(kind, drafter, files, tmp_path) -> None:
    with opened(files(kind), prompt_cache=str(tmp_path)) as plain:
        given = [plain.encode(" ".join([text] * 6)) for text in TEXTS]
        given.append([*given[0][:80], *given[1][:60]])
        params = [GREEDY, SAMPLED, GREEDY, SAMPLED]
        expected = tokens_of(plain.generate(given, params))
    with opened(files(kind), drafter, prompt_cache=str(tmp_path), controller=False) as llm:
        outputs = llm.generate(given, params)
    assert tokens_of(outputs) == expected
    num_cached = [output.num_cached_tokens for output in outputs]
    assert max(num_cached) >= 64
    assert min(num_cached) >= 64 or kind in ("qwen3_next", "nemotron_h_moe")  # few states are kept
    totals = SpecStats.total(output.outputs[0].stats for output in outputs)
    assert min(totals.drafted, totals.accepted, totals.rejected) > 0


def test_a_next_turn_finds_the_answer_too_and_counts_where_it_was(files, tmp_path) -> None:
    path, folder = files("olmo2"), str(tmp_path / "prompts")
    with opened(path, prompt_cache=folder) as llm:
        first = llm.encode(TEXTS[1])
        answer = tokens_of(llm.generate([first], GREEDY))[0]
    turn = [*first, *answer, *llm.tokenizer.encode(TEXTS[0])]
    with opened(path, prompt_cache=folder) as llm:
        output = llm.generate([turn], GREEDY)[0]
        known = (len(first) + len(answer) - 1) // 64 * 64
        assert output.num_cached_tokens == known > len(first)
        assert llm.generate([turn], GREEDY)[0].num_cached_tokens > known
        counts = {
            metric.name: metric.value
            for metric in llm.get_metrics()
            if not metric.labels.get("step") and hasattr(metric, "value")
        }
        assert counts["forerun:external_prefix_cache_hits"] == known
        assert counts["forerun:prefix_cache_hits"] >= len(turn) - 1


def test_what_changes_a_bit_is_another_model_and_nothing_else_is(files, tmp_path) -> None:
    folder = str(tmp_path / "prompts")
    path, moved = files("olmo2"), tmp_path / "moved.gguf"
    shutil.copy2(path, moved)

    def num_cached(path: Path, **options: Any) -> int:
        with opened(path, prompt_cache=folder, **options) as llm:
            return llm.generate([llm.encode(TEXTS[1] * 4)], GREEDY)[0].num_cached_tokens

    assert num_cached(path) == 0
    assert num_cached(moved, threads=2, max_model_len=300, max_num_seqs=1, prefill_chunk=17) >= 64
    for others in ({"kv": "int8"}, {"quant": "int8"}):
        assert num_cached(path, **others) == 0
        assert num_cached(path, **others) >= 64
    assert num_cached(files("gemma4")) == 0


def test_a_file_a_size_and_a_folder_that_cannot_be_are_said(files, tmp_path, caplog) -> None:
    path, file = files("olmo2"), tmp_path / "session.bin"
    file.write_text("llama.cpp's")
    with pytest.raises(ConfigError, match="must be a folder"):
        opened(path, prompt_cache=str(file))
    with pytest.raises(
        ConfigError, match="prompt_cache_size must be a size such as 8GiB, got '4G'"
    ):
        opened(path, prompt_cache=str(tmp_path), prompt_cache_size="4G")
    opened(path, prompt_cache=str(tmp_path / "small"), prompt_cache_size="100KiB").close()
    assert "a prompt cache of 102 kB holds" in caplog.text


def test_another_users_folder_is_not_used(files, tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr("forerun.system.processes.is_own", lambda path: False)
    with opened(files("olmo2"), prompt_cache=str(tmp_path)) as llm:
        assert llm.engine.cache.disk is None
        llm.generate([llm.encode(TEXTS[1] * 4)], GREEDY)
    assert "belongs to another user" in caplog.text
    assert not [*tmp_path.iterdir()]


def test_the_command_lists_what_is_stored_and_deletes_nothing_else(
    files, tmp_path, forerun
) -> None:
    folder = tmp_path / "prompts"
    with opened(files("olmo2"), prompt_cache=str(folder)) as llm:
        llm.generate([llm.encode(TEXTS[1] * 4)], GREEDY)
    (folder / "mine.txt").write_text("keep me")
    code, out, _ = forerun("cache", "--prompt-cache", folder, "--json")
    (model,) = json.loads(out)["models"]
    assert code == 0
    assert (model["name"], model["kv"]) == ("olmo2", "fp16")
    assert model["blocks"] >= 1
    assert "olmo2" in forerun("cache", "--prompt-cache", folder)[1]
    code, out, err = forerun("cache", "--prompt-cache", folder, "--clear")
    assert code == 0
    assert "deleted" in err
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert "nothing is stored" in forerun("cache", "--prompt-cache", folder)[1]


@pytest.mark.parametrize(
    ("features", "least"), [(NO_FEATURES, 1), (LAST_ROW, 1), (LAST_HIDDEN, 64)]
)
def test_a_drafter_that_reads_states_sees_those_of_the_last_block(
    features, least, tmp_path
) -> None:
    model, prompt = tiny_model(3, sharpness=3.0), [1 + i % 7 for i in range(193)]
    num_computed = []
    for _ in range(2):
        store = PromptStore(PromptFolder(tmp_path, 1 << 30), {}, {})
        cache = model.new_cache(1, 256)
        cache.keep_on(store)
        drafter = Drafter()
        drafter.features = features
        (run,) = complete(engine_for(model, drafter, cache=cache), [prompt], GREEDY)
        num_computed.append(len(prompt) - run.seq.num_reused)
        finish_writing()
    assert num_computed[0] == 193
    assert least <= num_computed[1] <= least + 64


@pytest.mark.parametrize("chunk", [64, 100, 256])
def test_a_prompt_from_disk_holds_no_stream_up_for_longer_than_a_chunk(
    chunk, tmp_path, monkeypatch
) -> None:
    """Blocks come in as many at a time as rows are computed in a step, and nothing that is there is computed."""
    model = tiny_model(3, sharpness=3.0, max_position=1024)
    prompt = [1 + i * i % 23 for i in range(3, 903)]
    alone = complete(engine_for(model), LOOPING[:1], GREEDY)[0].seq.generated
    expected = complete(engine_for(model, max_len=1024), [prompt], GREEDY)[0].seq.generated

    def engine() -> Engine:
        cache = model.new_cache(2, 1024)
        cache.keep_on(PromptStore(PromptFolder(tmp_path, 1 << 30), {}, {}))
        return engine_for(model, cache=cache, prefill_chunk=chunk)

    complete(engine(), [prompt], GREEDY)
    finish_writing()
    monkeypatch.setattr(PromptStore, "_is_slow", lambda *given: False)
    read, names = PromptStore.read, []
    monkeypatch.setattr(
        PromptStore, "read", lambda *given, **named: names.append(given[1]) or read(*given, **named)
    )
    second = engine()
    stream = second.add(LOOPING[0], GREEDY)
    second.step()
    late = second.add(prompt, GREEDY)
    while not late.seq.generated:
        before, num_read = len(stream.seq.generated), len(names)
        second.step()
        assert len(stream.seq.generated) > before
        assert len(names) - num_read <= -(-chunk // 64)
    assert len(names) == 14
    assert (late.seq.num_from_disk, late.seq.num_reused) == (896, 896)
    drain(second)
    assert (stream.seq.generated, late.seq.generated) == (alone, expected)
