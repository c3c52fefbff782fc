"""The loop: requests in, events out. One path for one sequence or many, for every drafter and for none."""
