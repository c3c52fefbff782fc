"""The service: one engine thread, an asyncio front, OpenAI's API."""
