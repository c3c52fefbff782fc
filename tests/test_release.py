"""What a model takes is given back when its `LLM` goes: by `del` alone, and by `close` whoever still holds it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from forerun import LLM, AsyncLLM, RequestError
from forerun.core.errors import ForerunError
from forerun.core.params import SamplingParams
from forerun.model import loader
from tests.server.conftest import wait_until

SIZES = {"max_model_len": 256, "max_num_seqs": 2}
PARAMS = SamplingParams(temperature=0, max_tokens=4)
DRAFTERS = ("none", "prompt_lookup", "auto", "suffix", "lookahead")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def loaded_anew(default_model, monkeypatch) -> None:
    """Nobody else holds the model: other tests share one."""
    monkeypatch.setattr("forerun.engine.loaded.load_model", loader.load_model)


def watched(llm: LLM) -> Callable[[], list[str]]:
    """What of it is still there."""
    parts = {"LLM": llm, "model": llm.model, "engine": llm.engine, "cache": llm.engine.cache}
    found = {name: weakref.ref(part) for name, part in parts.items()}
    return lambda: [name for name, part in found.items() if part() is not None]


@pytest.mark.parametrize("drafter", [*DRAFTERS, "draft_model:model=self"])
def test_del_frees_everything_without_the_collector(default_model, drafter):
    llm = LLM(str(default_model), drafter=drafter, **SIZES)
    llm.generate("One two three one two", PARAMS)
    for _ in llm.stream("One two", PARAMS):
        pass
    next(llm.stream("One two", PARAMS))
    left = watched(llm)
    assert left()
    del llm
    assert left() == []


def test_close_frees_what_others_still_refer_to(default_model):
    with LLM(str(default_model), drafter="none", **SIZES) as llm:
        left = watched(llm)
        plain = llm.with_drafter("prompt_lookup")
        stream = llm.stream("One two", SamplingParams(max_tokens=200, ignore_eos=True))
        next(stream)
    assert "model" in left(), "another LLM shares it"
    assert plain.generate("One two", PARAMS)[0].outputs[0].token_ids
    assert len([*stream]) < 150, "it was ended"
    plain.close()
    plain.close()
    del stream
    wait_until(lambda: left() == ["LLM"])
    for ask in (llm.generate, llm.stream, llm.get_metrics):
        with pytest.raises(RequestError, match="closed"):
            ask(*(() if ask == llm.get_metrics else ("One",)))
    with pytest.raises(RequestError, match="closed"):
        llm.with_drafter("none")


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_async_llm_frees_its_model_and_thread(default_model, is_closed):
    async def run():
        llm = AsyncLLM(str(default_model), drafter="none", **SIZES)
        await llm.generate("One two", PARAMS)
        left = watched(await llm.ready())
        if is_closed:
            llm.close()
            with pytest.raises(ForerunError, match="closed"):
                await llm.generate("One two", PARAMS)
        del llm
        return left

    left = asyncio.run(run())
    wait_until(lambda: not left())


def test_an_llm_that_was_given_stays_open(default_model):
    llm = LLM(str(default_model), drafter="none", **SIZES)

    async def run():
        async with AsyncLLM(llm) as own:
            return await own.generate("One two", PARAMS)

    found = asyncio.run(run())
    assert llm.generate("One two", PARAMS)[0].outputs[0].text == found.outputs[0].text
