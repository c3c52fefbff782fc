"""AsyncLLM: what `LLM` says, event by event, from an event loop."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress

import pytest

from forerun import AsyncLLM, CapacityError, LoadError, RequestError, SamplingParams
from forerun.server.async_request import AsyncRequest, Closed
from forerun.server.worker import Worker
from forerun.text.prompt import Encoded
from tests.server.conftest import wait_until

PROMPT = [{"role": "user", "content": "Write a list of ten animals. Then write the list again."}]
GREEDY = SamplingParams(temperature=0, max_tokens=32)


def test_streams_and_answers_are_those_of_the_llm(llm):
    (expected,) = llm.generate([PROMPT], GREEDY)[0].outputs

    async def run():
        async with AsyncLLM(llm) as made:
            events = [event async for event in made.stream(PROMPT, GREEDY)]
            assert repr(made) == f"Async{llm!r}"
            both = await asyncio.gather(*(made.generate(PROMPT, GREEDY) for _ in range(2)))
            return events, [one.outputs[0] for one in both]

    events, both = asyncio.run(run())
    assert "".join(event.text for event in events) == expected.text
    assert [one.token_ids for one in both] == [expected.token_ids] * 2
    assert both[0].stats.accepted > 0
    assert both[0].stats.rejected > 0


def test_leaving_a_stream_ends_it_before_the_next_step(llm):
    async def run():
        async with AsyncLLM(llm) as made:
            stream = made.stream(PROMPT, SamplingParams(temperature=0, max_tokens=400))
            first = await anext(stream)
            await stream.aclose()
            passes = llm.engine.stats.passes
            await made.generate("Hello", SamplingParams(max_tokens=1))
            return first, passes

    first, passes = asyncio.run(run())
    assert first.finish_reason is None
    assert not llm.engine.has_work
    assert llm.engine.stats.passes <= passes + 1  # the step that ran


@pytest.mark.parametrize("way", ["break", "exception", "dropped"])
def test_a_loop_that_is_left_ends_its_request_though_nobody_closes_it(llm, way):
    """Also where the event loop does not come to run anything else."""
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)

    async def leave(made: AsyncLLM) -> None:
        async for _ in made.stream(PROMPT, long):
            if way == "exception":
                raise KeyError
            break

    async def run() -> None:
        async with AsyncLLM(llm) as made:
            if way == "dropped":
                stream = made.stream(PROMPT, long)
                await anext(stream)
                del stream
            else:
                with suppress(KeyError):
                    await leave(made)
            passes = llm.engine.stats.passes
            wait_until(lambda: not llm.engine.has_work)  # no await
            assert llm.engine.stats.passes <= passes + 2

    asyncio.run(run())


def test_a_stream_that_ended_stays_ended(llm):
    async def run() -> None:
        async with AsyncLLM(llm) as made:
            stream = made.stream(PROMPT, GREEDY)
            assert await anext(stream)
            assert [one async for one in stream][-1].finish_reason is not None
            assert [one async for one in stream] == []
            await stream.aclose()
            refused = made.stream("", GREEDY)
            with pytest.raises(RequestError):
                await anext(refused)
            assert [one async for one in refused] == []
            closed = made.stream(PROMPT, GREEDY)
            await closed.aclose()
            assert [one async for one in closed] == []

    asyncio.run(run())


def test_a_cancelled_task_frees_its_place(llm):
    async def run():
        async with AsyncLLM(llm) as made:
            long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await made.generate(PROMPT, long)
            await made.generate("Hello", SamplingParams(max_tokens=1))

    asyncio.run(run())
    assert not llm.engine.has_work


def test_errors_are_told_to_who_asked(llm):
    async def run():
        async with AsyncLLM(llm) as made:
            with pytest.raises(CapacityError, match="the context holds 512"):
                await made.generate("word " * 600)
            with pytest.raises(RequestError, match="the prompt is empty"):
                await made.generate([])
            return (await made.generate("Hello", GREEDY)).outputs[0].text

    assert asyncio.run(run())

    async def missing():
        async with AsyncLLM("/no/such/model.gguf") as made:
            await made.generate("Hello")

    with pytest.raises(LoadError):
        asyncio.run(missing())


def test_a_step_that_fails_ends_its_requests_and_no_later_ones(llm, monkeypatch, caplog):
    step = llm.engine.step
    fails = threading.Event()

    def failing():
        if fails.is_set():
            fails.clear()
            raise RuntimeError("broken step")
        return step()

    async def run():
        async with AsyncLLM(llm) as made:
            fails.set()
            with pytest.raises(RuntimeError, match="broken step"):
                await made.generate(PROMPT, GREEDY)
            return (await made.generate(PROMPT, GREEDY)).outputs[0].token_ids

    expected = llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids
    monkeypatch.setattr(llm.engine, "step", failing)
    assert asyncio.run(run()) == expected
    assert "an engine step failed" in caplog.text


def test_requests_of_a_closed_engine_are_refused(llm):
    async def run():
        made = AsyncLLM(llm)
        await made.ready()
        running = asyncio.create_task(
            made.generate(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True))
        )
        await asyncio.sleep(0.1)
        await asyncio.to_thread(made.close)
        with pytest.raises(Exception, match="shutting down"):
            await running
        with pytest.raises(Exception, match="shutting down"):
            await made.generate(PROMPT)

    asyncio.run(run())
    assert not llm.engine.has_work


def test_a_request_whose_second_prompt_is_refused_leaves_nothing_running(llm):
    async def run():
        worker = Worker(lambda: llm)
        worker.start()
        try:
            llm_ = await asyncio.to_thread(worker.wait_until_loaded)
            long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
            prompts = [Encoded(llm_.encode(PROMPT)), Encoded([])]
            request = worker.submit(prompts, long)
            with pytest.raises(RequestError, match="the prompt is empty"):
                await request.accepted()
            other = worker.submit(prompts[:1], GREEDY)  # the engine goes on with what there is
            async for _ in other.events():
                pass
            assert [one.is_finished for one in request.handles] == [True]
            assert not llm.engine.has_work
        finally:
            await asyncio.to_thread(worker.close)

    asyncio.run(run())
    assert llm.engine.cache.pool.num_used == 0


def test_jobs_that_wait_for_a_worker_that_closes_are_refused(llm):
    """Those that come while it loads and closes, and those that come after."""
    may_load = threading.Event()

    def load():
        assert may_load.wait(60)
        return llm

    async def run():
        worker = Worker(load)
        worker.start()
        prompts = [Encoded(llm.encode("Hello"))]
        early = [worker.submit(prompts, GREEDY) for _ in range(3)]
        assert not worker.close(0)
        may_load.set()
        for request in early:
            with pytest.raises(Closed, match="shutting down"):
                await asyncio.wait_for(request.accepted(), 30)
        assert await asyncio.to_thread(worker.close, 30)
        late = worker.submit(prompts, GREEDY)
        with pytest.raises(Closed, match="shutting down"):
            await asyncio.wait_for(late.accepted(), 30)

    asyncio.run(run())
    assert not llm.engine.has_work


@pytest.mark.parametrize(
    ("num_running", "interval_s"), [(1, 0.02), (4, 0.02), (8, 0.04), (64, 0.1)]
)
def test_streams_are_sent_together_and_less_often_where_many_run(num_running, interval_s):
    loop = asyncio.new_event_loop()
    streams = [AsyncRequest(None, loop, interval_s=0.02) for _ in range(num_running)]
    loop.close()
    times = [
        [1 + ms / 1e3 for ms in range(3 * i, 3000) if one.is_due(1 + ms / 1e3, num_running)]
        for i, one in enumerate(streams)
    ]
    for i, own in enumerate(times):
        assert own[0] == 1 + 3 * i / 1e3  # the first at once
        assert {*own[1:]} <= {*times[0]}
        assert len(own) == pytest.approx((3 - 3 * i / 1e3) / interval_s, abs=2)


@pytest.mark.parametrize(("interval_s", "due"), [(0.0, True), (math.inf, False)])
def test_news_is_sent_after_every_step_or_with_the_last(interval_s, due):
    loop = asyncio.new_event_loop()
    request = AsyncRequest(None, loop, interval_s=interval_s)
    loop.close()
    assert all(request.is_due(1 + ms / 1e3, 8) is due for ms in range(100))


def outputs_of(llm, **own):
    """The outputs of one request, as they came."""

    async def run():
        async with AsyncLLM(llm) as made:
            params = SamplingParams(temperature=0, max_tokens=24, logprobs=0, **own)
            return [one async for one in made.generate(PROMPT, params, request_id="mine")]

    return asyncio.run(run())


def test_an_output_grows_in_a_loop_as_vllms_does(llm):
    params = SamplingParams(temperature=0, max_tokens=24, logprobs=0)
    (whole,) = llm.generate([PROMPT], params)[0].outputs
    outputs = outputs_of(llm)
    assert {one.request_id for one in outputs} == {"mine"}
    assert [one.finished for one in outputs] == [False] * (len(outputs) - 1) + [True]
    for output in outputs:
        (one,) = output.outputs
        assert whole.text.startswith(one.text)
        assert one.token_ids == whole.token_ids[: len(one.token_ids)]
        assert len(one.logprobs) == len(one.token_ids)
        assert (one.finish_reason is None) is not output.finished
    assert len(outputs) > 2
    assert outputs[-1].outputs[0].text == whole.text
    assert outputs[-1].outputs[0].logprobs == whole.logprobs
    parts = [one.outputs[0] for one in outputs_of(llm, output_kind="DELTA")]
    assert "".join(one.text for one in parts) == whole.text
    assert [token for one in parts for token in one.token_ids] == [*whole.token_ids]
    assert [one.finish_reason for one in parts[:-1]] == [None] * (len(parts) - 1)
    (final,) = outputs_of(llm, output_kind="FINAL_ONLY")
    assert (final.finished, final.outputs[0].text) == (True, whole.text)


def test_the_completions_of_one_prompt_grow_together(llm):
    async def run():
        async with AsyncLLM(llm) as made:
            params = SamplingParams(n=2, seed=3, max_tokens=12, output_kind="DELTA")
            texts = ["", ""]
            async for output in made.generate("Hello", params):
                for one in output.outputs:
                    texts[one.index] += one.text
            return texts, (await made.generate("Hello", params)).outputs

    texts, whole = asyncio.run(run())
    assert texts == [one.text for one in whole]


def test_a_request_is_aborted_by_its_id_and_by_leaving_its_loop(llm):
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)

    async def run():
        async with AsyncLLM(llm) as made:
            async for _ in made.generate(PROMPT, long):
                break
            answer = made.generate(PROMPT, long, request_id="a")
            await anext(answer)
            await made.abort("b")
            await made.abort("a")
            with pytest.raises(StopAsyncIteration):
                await anext(answer)
            task = asyncio.create_task(made.generate(PROMPT, GREEDY))
            assert (await task).finished
            with pytest.raises(RuntimeError, match="read to its end"):
                await answer
            with pytest.raises(RequestError, match="lora_request='a' is not supported"):
                made.generate(PROMPT, GREEDY, lora_request="a")

    asyncio.run(run())
    assert not llm.engine.has_work
