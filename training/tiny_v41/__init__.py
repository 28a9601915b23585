"""rorqual-tiny-v41: a small V4.1 model made from nothing."""
