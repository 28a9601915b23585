"""How the shipped checkpoints were made, end to end."""
