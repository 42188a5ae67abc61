"""Qwen3-VL embedders."""
