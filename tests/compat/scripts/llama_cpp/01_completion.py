from llama_cpp import Llama

llm = Llama(model_path="MODEL", n_ctx=256, n_gpu_layers=-1, verbose=False)
output = llm("Q: Name the planets. A: ", max_tokens=12, stop=["Q:", "\n"], echo=True)
choice = output["choices"][0]
print(
    sorted(output), choice["text"].startswith("Q: Name the planets. A: "), choice["finish_reason"]
)
print(
    output["usage"]["total_tokens"]
    == output["usage"]["prompt_tokens"] + output["usage"]["completion_tokens"]
)
