from vllm import LLM, SamplingParams

llm = LLM(model="MODEL", max_model_len=256)
question = [{"role": "user", "content": "What is the capital of France?"}]
digits = [llm.get_tokenizer().encode(digit)[0] for digit in "0123456789"]


def no_e(token_ids, logits):
    logits[forbidden] = float("-inf")
    return logits


forbidden = [i for i in range(300) if "e" in llm.get_tokenizer().decode([i])]
for settings in (
    SamplingParams(temperature=0, max_tokens=12, bad_words=["Paris"]),
    SamplingParams(temperature=0, max_tokens=5, allowed_token_ids=digits),
    SamplingParams(temperature=0, max_tokens=5, logits_processors=[no_e]),
):
    output = llm.chat(question, settings)[0].outputs[0]
    print(
        "Paris" not in output.text or settings.bad_words == (),
        output.text.isdigit(),
        len(output.token_ids),
    )
