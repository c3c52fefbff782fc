"""One model over several processes that torchrun starts: each holds a part of every layer.

Rank 0 runs everything else (engine, drafters, server) and tells the others what to compute. `split.py` says who holds
what, `group.py` brings the processes together, `link.py` carries what rank 0 says, `tensor.py` is the model.
"""
