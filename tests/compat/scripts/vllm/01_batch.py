from vllm import LLM, SamplingParams

texts = ["The first day of the week is", "Water boils at", "A poem about rain:"]
settings = SamplingParams(temperature=0.7, top_p=0.9, seed=11, max_tokens=8)


def run():
    llm = LLM(model="MODEL", max_model_len=256)
    for text, output in zip(texts, llm.generate(texts, settings)):
        assert output.prompt == text
        print(len(output.outputs[0].token_ids), output.finished)


if __name__ == "__main__":
    run()
