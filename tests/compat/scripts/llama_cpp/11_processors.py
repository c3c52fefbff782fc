import numpy as np
from llama_cpp import Llama, LogitsProcessorList, StoppingCriteriaList

llm = Llama(model_path="MODEL", n_ctx=256, verbose=False)
prompt = "The sky is"
start = len(llm.tokenize(prompt.encode()))


def no_repeat(input_ids, scores):
    scores[input_ids[start:]] = -np.inf
    return scores


def three_tokens(input_ids, logits):
    return len(input_ids) >= start + 3


free = llm(prompt, max_tokens=24, temperature=0, logits_processor=LogitsProcessorList([no_repeat]))
ids = llm.tokenize(free["choices"][0]["text"].encode(), add_bos=False)
print(len(ids) == len(set(ids)))
short = llm(
    prompt, max_tokens=24, temperature=0, stopping_criteria=StoppingCriteriaList([three_tokens])
)
print(
    len(llm.tokenize(short["choices"][0]["text"].encode(), add_bos=False)),
    short["choices"][0]["finish_reason"],
)
