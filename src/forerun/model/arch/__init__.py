"""One file a family: how its Hugging Face and GGUF files spell what the one decoder needs. See `base.mapping.Arch`."""
