"""Tasks with right and wrong answers: one file a task; the file's name is the task's."""
