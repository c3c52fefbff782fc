from vllm import LLM
from vllm.engine.arg_utils import EngineArgs

args = EngineArgs(model="MODEL", runner="pooling", enforce_eager=True, max_model_len=256)
llm = LLM(**vars(args))
for output in llm.embed(["A cat.", "A dog."]):
    vector = output.outputs.embedding
    print(len(vector) > 100, round(sum(x * x for x in vector), 3))
