"""How the draft module for SmolLM2-135M-Instruct is made."""
