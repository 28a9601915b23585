"""Trace-driven simulator over the policies of Rorqual."""
