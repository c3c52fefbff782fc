"""Which drafter suits this prompt? Every one gives the same tokens; they differ in passes."""

from forerun import LLM, SamplingParams

PROMPT = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog."
PARAMS = SamplingParams(temperature=0, max_tokens=48)

llm = LLM("smollm2-135m-instruct", drafter="none")
plain = llm.chat([{"role": "user", "content": PROMPT}], PARAMS)[0].outputs[0]
for drafter in ("prompt_lookup", "suffix"):
    drafted = (
        llm.with_drafter(drafter).chat([{"role": "user", "content": PROMPT}], PARAMS)[0].outputs[0]
    )
    assert drafted.token_ids == plain.token_ids
    stats = drafted.stats
    print(f"{drafter}: {plain.stats.passes} passes become {stats.passes}, tau {stats.tau:.2f}")
