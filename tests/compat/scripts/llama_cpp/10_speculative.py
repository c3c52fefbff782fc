from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

plain = Llama(model_path="MODEL", n_ctx=256, verbose=False, drafter="none")
drafted = Llama(
    model_path="MODEL", n_ctx=256, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4)
)
text = "one two three one two three one two"
answers = [
    llm(text, max_tokens=24, temperature=0)["choices"][0]["text"] for llm in (plain, drafted)
]
print(answers[0] == answers[1], drafted.llm.drafter_spec.name == "prompt_lookup")
