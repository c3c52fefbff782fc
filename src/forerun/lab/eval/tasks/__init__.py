"""Tasks with right and wrong answers: one file a task; the file's name is the task's.

A file says how many tokens an answer may have (`MAX_TOKENS`), whether a verdict runs what the model wrote
(`RUNS_CODE`), what the user says (`question(prompt)`), and which answers are right (`is_right(prompt, answer)`, which
raises ConfigError if the prompt's `reference` is not what the task needs). Prompts come from a file of the user's.
"""
