from llama_cpp import Llama

llm = Llama(model_path="MODEL", chat_format="chatml", n_ctx=256, verbose=False)
answer = llm.create_chat_completion(
    messages=[
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "What is the capital of France?"},
    ],
    temperature=0,
)
print(
    answer["object"],
    answer["choices"][0]["message"]["role"],
    "Paris" in answer["choices"][0]["message"]["content"],
)
