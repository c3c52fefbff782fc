from llama_cpp import Llama

llm = Llama(model_path="MODEL", n_ctx=256, verbose=False)
tokens = llm.tokenize(b"The quick brown fox")
print(
    llm.detokenize(tokens).decode(), llm.n_ctx(), max(tokens) < llm.n_vocab(), llm.token_eos() >= 0
)
made = []
for token in llm.generate(tokens, top_k=40, top_p=0.95, temp=0.0, repeat_penalty=1.0):
    made.append(token)
    if len(made) == 6:
        break
print(
    llm.detokenize(made).decode() == llm(tokens, max_tokens=6, temperature=0)["choices"][0]["text"]
)
