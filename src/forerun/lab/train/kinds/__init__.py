"""The kinds of networks that are trained, a file each: its learner, and how other engines read it."""
