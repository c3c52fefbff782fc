import copy

from llama_cpp import Llama

llm = Llama(model_path="MODEL", n_ctx=256, seed=1, verbose=False)
text, last = "", None
for output in llm("The sea is", max_tokens=10, temperature=0.0, stream=True):
    completion = copy.deepcopy(output)
    text += completion["choices"][0]["text"]
    last = completion["choices"][0]["finish_reason"]
whole = llm.create_completion("The sea is", max_tokens=10, temperature=0.0)
print(text == whole["choices"][0]["text"], last)
