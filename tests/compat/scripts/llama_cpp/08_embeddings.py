from llama_cpp import Llama

llm = Llama(model_path="MODEL", embedding=True, n_ctx=256, verbose=False)
one = llm.create_embedding("Hello, world!")
many = llm.create_embedding(["Hello, world!", "Goodbye, world!"])
print(one["object"], len(one["data"]), [each["index"] for each in many["data"]])
print(
    one["data"][0]["embedding"] == many["data"][0]["embedding"] == llm.embed("Hello, world!"),
    len(llm.embed(["a", "b"])),
)
