"""How alike embeddings are: cosine, and late interaction (ColBERT, Khattab & Zaharia 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import mlx.core as mx


def similarity(queries: np.ndarray | Sequence[np.ndarray], documents: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Every query against every document: ``[Q, D]``, cosines or, of multi-vector embeddings, MaxSim.

    :param queries: ``.vectors`` of an embedder's answer: ``[Q, K]``, or a list of ``[L, K]``; likewise ``documents``.
    """
    if any(np.ndim(vector) == 2 for vector in (*queries[:1], *documents[:1])):
        return maxsim_matrix(list(queries), list(documents))
    cosines: np.ndarray = _unit(queries) @ _unit(documents).T
    return cosines


def _unit(vectors: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    wide = np.asarray(vectors, np.float64)
    unit: np.ndarray = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return unit


def maxsim(query: np.ndarray, document: np.ndarray) -> float:
    """``sum over query rows of the best dot product with any document row``: ``[Lq, K]``, ``[Ld, K]`` -> a number.

    Not symmetric: the sum runs over the query. Bounded by ``Lq`` where rows have length 1.
    """
    return float((query @ document.T).max(axis=1).sum())


def maxsim_matrix(queries: Sequence[np.ndarray], documents: Sequence[np.ndarray]) -> np.ndarray:
    """Every query against every document, of any lengths: ``[Q, D]`` float32.

    One product over all document rows at once, cut at the documents' borders, so that nothing is padded.
    """
    lengths = [len(document) for document in documents]
    borders = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rows = np.concatenate(documents)  # [sum Ld, K]
    best = [np.maximum.reduceat(query @ rows.T, borders, axis=1).sum(axis=0) for query in queries]
    return np.stack(best).astype(np.float32)


def maxsim_padded(query: mx.array, documents: mx.array, attention_mask: mx.array) -> mx.array:
    """One query against padded documents, on the device: ``[Lq, K]``, ``[D, L, K]``, ``[D, L]`` -> ``[D]``.

    Padding is left out by the mask, not by its zero rows: a document whose rows all point away from the query has a
    best product below zero. A document that is all padding scores -inf.
    """
    import mlx.core as mx

    products = query @ documents.swapaxes(1, 2)  # [D, Lq, L]
    return mx.where(attention_mask[:, None] == 0, -mx.inf, products).max(axis=2).sum(axis=1)
