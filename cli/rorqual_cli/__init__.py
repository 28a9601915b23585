"""The `rorqual` command line."""
