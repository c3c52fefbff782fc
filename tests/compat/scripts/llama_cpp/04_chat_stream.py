from llama_cpp import Llama

llm = Llama("MODEL", n_ctx=256, verbose=False)
messages = [{"role": "user", "content": "What is the capital of France?"}]
said, role, reason = "", None, None
for chunk in llm.create_chat_completion(
    messages=messages, temperature=0, max_tokens=12, stream=True
):
    delta = chunk["choices"][0]["delta"]
    if "role" in delta:
        role = delta["role"]
    elif "content" in delta:
        said += delta["content"]
    reason = chunk["choices"][0]["finish_reason"]
whole = llm.create_chat_completion(messages, temperature=0, max_tokens=12)
print(
    role,
    said == whole["choices"][0]["message"]["content"],
    reason == whole["choices"][0]["finish_reason"],
)
