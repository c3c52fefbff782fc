import json

from pydantic import BaseModel
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams


class Car(BaseModel):
    brand: str
    doors: int


llm = LLM(model="MODEL", max_model_len=512)


def ask(text, form, tokens=60):
    settings = SamplingParams(temperature=0, max_tokens=tokens, structured_outputs=form)
    return llm.generate(text, sampling_params=settings)[0].outputs[0].text


print(ask("Is rain wet? Answer:", StructuredOutputsParams(choice=["yes", "no"])) in ("yes", "no"))
print(len(ask("My number is ", StructuredOutputsParams(regex=r"[0-9]{4}"))))
print(
    sorted(json.loads(ask("A car as JSON:", StructuredOutputsParams(json=Car.model_json_schema()))))
)
