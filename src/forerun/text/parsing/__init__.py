"""What an answer consists of: what the model thinks, says and calls, in the form of its family."""
