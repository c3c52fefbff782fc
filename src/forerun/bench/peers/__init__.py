"""Other engines, one file each: the file's name is the peer's, with `_` for `.` and `-`.

A file says what to install (`REQUIREMENTS`, for `make peers`), which ways of decoding it has (`WAYS`) and how to load
a model (`load`). It runs in the peer's own environment, so it imports nothing of forerun.
"""
