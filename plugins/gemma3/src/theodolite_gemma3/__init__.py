"""EmbeddingGemma."""
