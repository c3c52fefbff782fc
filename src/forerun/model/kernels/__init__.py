"""The arithmetic of a decoder, one op at a time, and nothing else: no names, no cache, no batches.

`reference.py` says in plain torch what every op means; it runs on any device and is the oracle of
faster kernels. All kernels obey the row law: a row's result does not depend on the other rows,
bit for bit.
"""
