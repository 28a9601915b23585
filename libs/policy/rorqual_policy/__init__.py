"""Pure decisions of Rorqual: standard library only."""
