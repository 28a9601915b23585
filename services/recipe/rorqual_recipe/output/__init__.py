"""From token ids to text, held back and cut exactly where it has to be."""
