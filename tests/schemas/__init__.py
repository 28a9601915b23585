"""Generated JSON schemas against a running fleet: `python -m tests.schemas.run --seed N`."""
