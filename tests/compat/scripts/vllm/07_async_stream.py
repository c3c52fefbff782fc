import asyncio

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def stream(engine, text, request_id):
    settings = SamplingParams(
        max_tokens=10, temperature=0.8, seed=42, output_kind=RequestOutputKind.DELTA
    )
    written = ""
    async for output in engine.generate(
        request_id=request_id, prompt=text, sampling_params=settings
    ):
        for completion in output.outputs:
            written += completion.text
        if output.finished:
            print(request_id, bool(written))
            break


async def main():
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(model="MODEL", enforce_eager=True, max_model_len=256)
    )
    try:
        for number, text in enumerate(["The future of work is", "In a far land"]):
            await stream(engine, text, f"stream-{number}")
    finally:
        engine.shutdown()


asyncio.run(main())
