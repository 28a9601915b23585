"""Token generation."""
