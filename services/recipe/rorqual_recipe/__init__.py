"""Protocol bodies to token ids, tokens to protocol events."""
