import asyncio
from uuid import uuid4

from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams


async def main():
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model="MODEL", max_model_len=256))
    final, lengths = None, []
    async for output in engine.generate(
        "One, two, three,", SamplingParams(temperature=0, max_tokens=8), str(uuid4())
    ):
        final = output
        lengths.append(len(output.outputs[0].token_ids))
    print(lengths == sorted(lengths), lengths[-1], final.finished)
    tokenizer = await engine.get_tokenizer()
    print(len(tokenizer.encode("hello")) > 0)
    engine.shutdown()


asyncio.run(main())
