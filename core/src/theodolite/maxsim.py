"""Late interaction: the score of two multi-vector embeddings (ColBERT, Khattab & Zaharia 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
