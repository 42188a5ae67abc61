"""Cross-encoders and Qwen3 rerankers."""
