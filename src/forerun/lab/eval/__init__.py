"""Measuring what comes out: prompts to run, and whether two runs say the same."""
