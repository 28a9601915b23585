"""A day of a large fleet, second by second: millions of requests as streams of a few sizes."""
