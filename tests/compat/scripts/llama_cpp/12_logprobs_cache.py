from llama_cpp import Llama, LlamaRAMCache

llm = Llama(model_path="MODEL", n_ctx=256, logits_all=True, verbose=False)
llm.set_cache(LlamaRAMCache(capacity_bytes=2 << 30))
found = llm("The capital of France is", max_tokens=3, temperature=0, logprobs=2)["choices"][0][
    "logprobs"
]
print(sorted(found), [len(top) for top in found["top_logprobs"]])
print(found["token_logprobs"][0] == max(found["top_logprobs"][0].values()), found["text_offset"][0])
chat = [{"role": "user", "content": "Hi"}]
answer = llm.create_chat_completion(chat, max_tokens=2, logprobs=True, top_logprobs=1, seed=3)
print(len(answer["choices"][0]["logprobs"]["content"]))
