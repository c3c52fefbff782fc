from vllm import LLM

llm = LLM(model="MODEL", max_model_len=256)
query = "A cat sits on the mat."
found = llm.score(query, ["A cat is sitting on a mat.", "Shares fell by two percent."])
scores = [one.outputs.score for one in found]
print(len(scores), scores[0] > scores[1], all(-1 <= score <= 1 for score in scores))
