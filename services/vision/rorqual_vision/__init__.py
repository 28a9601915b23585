"""Images to patch embeddings."""
