"""Texts and tokens: tokenizers, chat templates, messages, tool calls."""
