from vllm import LLM, SamplingParams, TokensPrompt
from vllm.inputs import TextPrompt
from vllm.outputs import RequestOutput

llm = LLM(model="MODEL", max_model_len=256)
ids = llm.get_tokenizer().encode("The capital of France is")
settings = SamplingParams(temperature=0, max_tokens=3, logprobs=-1, prompt_logprobs=1)
outputs = llm.generate(
    [TokensPrompt(prompt_token_ids=list(ids)), TextPrompt(prompt="Hello")], settings
)
assert all(isinstance(output, RequestOutput) for output in outputs)
first = outputs[0].outputs[0]
print(
    len(first.logprobs), len(first.logprobs[0]) > 1000, len(outputs[0].prompt_logprobs) == len(ids)
)
print(max(first.logprobs[0].values(), key=lambda one: one.logprob).rank)
