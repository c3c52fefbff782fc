"""Stream an answer and mark what the drafter had guessed."""

from forerun import LLM, SamplingParams

llm = LLM("smollm2-135m-instruct", drafter="suffix")
messages = [{"role": "user", "content": "Count from one to twenty in words, twice."}]
for event in llm.stream(messages, SamplingParams(temperature=0, max_tokens=64)):
    for piece in event.pieces:
        print(f"[{piece.text}]" if piece.from_draft else piece.text, end="")
print()
