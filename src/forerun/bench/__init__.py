"""The honest measure: drafters and other engines beside our own plain decode, on the same prompts, in one run.

workload (what is asked) -> run (who answers, in which order) -> record (one line a measurement)
-> summary (rows of figures) -> report, plots (what people read).
"""
