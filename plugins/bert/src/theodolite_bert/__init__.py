"""BERT and XLM-RoBERTa embedders."""
