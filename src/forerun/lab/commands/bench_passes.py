"""`forerun bench passes`: the former name of `forerun bench kernels --peers ...`."""

from forerun.lab.commands.bench_kernels import command as command

HIDDEN = True
