"""Which prefix blocks exist."""
