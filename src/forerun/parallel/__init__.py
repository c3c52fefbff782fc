"""One model over several processes that torchrun starts: each holds a part of every layer.

Rank 0 runs everything else (engine, drafters, server) and tells the others what to compute. `launch.py` and `group.py`
bring the processes together, `link.py` carries its commands, `cache.py` keeps their caches alike, `load.py` makes
each its part. `split.py`, `tensor.py` and `head.py` cut layers.
"""
