"""The service: one engine thread, an asyncio front, and the APIs that clients know (`api/`)."""
