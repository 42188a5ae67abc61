"""The routes, a module per dialect, each with its table ``ROUTES``."""

from __future__ import annotations

from theodolite_server.routes import cohere, embeddings, llama, ollama, ops, pages, rerank, tei
from theodolite_server.routes.common import Route

TABLE: tuple[Route, ...] = tuple(
    route for module in (embeddings, rerank, cohere, tei, llama, ollama, ops, pages) for route in module.ROUTES
)
