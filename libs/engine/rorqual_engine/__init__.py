"""Model execution of Rorqual."""
