"""The command line: one file a command; the file's name is the command's."""
