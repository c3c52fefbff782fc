import json

from llama_cpp import Llama

llm = Llama(model_path="MODEL", n_ctx=512, verbose=False)
answer = llm.create_chat_completion(
    messages=[{"role": "user", "content": "Who won the world series in 2020? Answer in JSON."}],
    response_format={
        "type": "json_object",
        "schema": {
            "type": "object",
            "properties": {"team": {"enum": ["Dodgers", "Rays"]}},
            "required": ["team"],
        },
    },
    temperature=0.7,
)
print([*json.loads(answer["choices"][0]["message"]["content"])])
