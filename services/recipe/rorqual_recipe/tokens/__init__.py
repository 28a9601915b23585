"""Text to token ids, and token ids back to bytes."""
