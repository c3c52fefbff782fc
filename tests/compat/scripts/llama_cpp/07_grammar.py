from llama_cpp import Llama, LlamaGrammar

grammar = LlamaGrammar.from_string('root ::= "[" [0-9] ("," [0-9])? "]"', verbose=False)
llm = Llama(model_path="MODEL", n_ctx=256, verbose=False)
text = llm("A list of digits: ", grammar=grammar, max_tokens=20)["choices"][0]["text"]
print(text[0], text[-1], len(text) in (3, 5))
by_schema = LlamaGrammar.from_json_schema('{"type": "boolean"}')
print(llm("Is it so? ", grammar=by_schema)["choices"][0]["text"] in ("true", "false"))
