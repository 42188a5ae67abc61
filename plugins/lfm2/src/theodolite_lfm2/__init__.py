"""LFM2.5-Embedding."""
