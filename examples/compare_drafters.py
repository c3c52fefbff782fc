"""Which drafter suits this prompt? Every one gives the same tokens; they differ in passes."""

from forerun import LLM, SamplingParams

MESSAGES = [{"role": "user", "content": "What is the water cycle?"}]
PARAMS = SamplingParams(temperature=0, max_tokens=128)

llm = LLM("smollm2-135m-instruct", drafter="none")
plain = llm.chat(MESSAGES, PARAMS)[0].outputs[0]
print(plain.text)
for drafter in ("prompt_lookup", "suffix", "recycling"):
    answer = llm.with_drafter(drafter).chat(MESSAGES, PARAMS)[0].outputs[0]
    assert answer.token_ids == plain.token_ids
    stats = answer.stats
    print(
        f"{drafter}: {plain.stats.passes} passes become {stats.passes}, {stats.tau:.2f} tokens per pass (tau)"
    )
