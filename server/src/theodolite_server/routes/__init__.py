"""The routes, a module per dialect, each with its table ``ROUTES``."""

from __future__ import annotations

from theodolite_server.routes import embeddings, ops, rerank
from theodolite_server.routes.common import Route

TABLE: tuple[Route, ...] = (*embeddings.ROUTES, *rerank.ROUTES, *ops.ROUTES)
