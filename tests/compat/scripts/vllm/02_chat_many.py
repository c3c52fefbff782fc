from vllm import LLM

llm = LLM(model="MODEL", max_model_len=256)
settings = llm.get_default_sampling_params()
settings.temperature, settings.max_tokens = 0.0, 16
talk = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
one = llm.chat(talk, settings, use_tqdm=False)
many = llm.chat([talk, talk], sampling_params=settings, use_tqdm=False)
print(
    len(one),
    len(many),
    "Paris" in one[0].outputs[0].text,
    many[0].outputs[0].text == one[0].outputs[0].text,
)
