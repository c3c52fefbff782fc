"""Other engines, one file each: the file's name is the peer's, with `_` for `.` and `-`.

A file says what to install (`REQUIREMENTS`, for `make peers`), in which precision it holds the weights (`QUANT`, None:
as in the model's file), whether it keeps what it has read of a conversation for the next turn, as we do
(`KEEPS_PREFIXES`: else its time to the first token is not compared), which ways of decoding it has (`WAYS`) and how to
load a model (`load`). One that does not read GGUF when it loads also says how to make its own format (`convert`). Both
run in the peer's environment, so such a file imports nothing of forerun, and the peer's library only inside its
functions.
"""

from forerun.lab.bench.peers._worker import burst as burst
