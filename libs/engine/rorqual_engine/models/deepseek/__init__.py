"""DeepSeek V4 and V4.1: streams, windows, compressed KV, experts. See README.md."""
