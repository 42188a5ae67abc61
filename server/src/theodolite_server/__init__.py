"""The HTTP server: one queue and one thread per model, and a module of routes per dialect."""
