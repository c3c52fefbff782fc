"""`forerun eval law`: the former name of `forerun eval distribution`."""

from forerun.lab.commands.eval_distribution import command as command

HIDDEN = True
