"""The arithmetic of a decoder, one op at a time, and nothing else: no names, no cache, no batches.

Every op is defined in plain torch by `forerun.lab.torch.reference`, the oracle of these kernels. All keep the row law:
a row's result does not depend on the other rows, bit for bit.
"""
