"""Instance counts."""
