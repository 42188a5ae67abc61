"""ModernBERT embedders."""
