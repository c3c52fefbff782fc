from vllm import LLM
from vllm.outputs import PoolingRequestOutput

llm = LLM(model="MODEL", max_model_len=256)
whole = llm.encode(["A short text."], pooling_task="embed")[0]
each = llm.encode(["A short text."], pooling_task="token_embed")[0]
assert isinstance(whole, PoolingRequestOutput)
print(
    whole.outputs.data.ndim,
    each.outputs.data.ndim,
    len(each.outputs.data) == len(each.prompt_token_ids),
)
