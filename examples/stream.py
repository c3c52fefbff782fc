"""Stream an answer and mark what the drafter had guessed."""

from forerun import LLM, SamplingParams

llm = LLM("smollm2-135m-instruct")
messages = [{"role": "user", "content": "What is photosynthesis?"}]
for event in llm.stream(messages, SamplingParams(temperature=0, max_tokens=128)):
    for piece in event.pieces:
        print(f"[{piece.text}]" if piece.from_draft else piece.text, end="", flush=True)
print()
