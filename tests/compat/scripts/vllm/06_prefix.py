from vllm import LLM, SamplingParams

shared = (
    "You teach at a school in a small town by the sea, and you know every child and every boat. "
    * 6
)
asked = [shared + "Who are you?", shared + "What is your name?"]
greedy = SamplingParams(temperature=0.0, max_tokens=6)
llm = LLM(model="MODEL", enable_prefix_caching=True, max_model_len=512)
first = llm.generate(asked[0], greedy)[0]
second = llm.generate(asked[1], greedy)[0]
print(first.num_cached_tokens, second.num_cached_tokens > 50)
print(llm.reset_prefix_cache())
again = llm.generate(asked[1], greedy)[0]
print(again.num_cached_tokens, again.outputs[0].text == second.outputs[0].text)
