import json

from llama_cpp import Llama

llm = Llama(model_path="MODEL", n_ctx=1024, verbose=False)
schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
answer = llm.create_chat_completion(
    messages=[{"role": "user", "content": "Extract: Jason is 25 years old"}],
    tools=[
        {
            "type": "function",
            "function": {
                "name": "UserDetail",
                "parameters": schema | {"required": ["name", "age"]},
            },
        }
    ],
    tool_choice={"type": "function", "function": {"name": "UserDetail"}},
    temperature=0,
)
(call,) = answer["choices"][0]["message"]["tool_calls"]
print(
    call["function"]["name"],
    sorted(json.loads(call["function"]["arguments"])),
    answer["choices"][0]["finish_reason"],
)
