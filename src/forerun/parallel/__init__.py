"""One model over several processes that torchrun starts: each holds a part of every layer, or some of the layers.

Rank 0 runs everything else (engine, drafters, server) and tells the others what to compute. `place.py` and `group.py`
bring the processes together, `link.py` carries what rank 0 says, `cache.py` keeps their caches alike, `load.py` makes
each its part. `split.py`, `tensor.py` and `head.py` cut layers; `pipeline.py` cuts between them.
"""
