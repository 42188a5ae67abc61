"""Qwen3-Embedding."""
