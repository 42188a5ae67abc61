"""Relevance of documents for a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from theodolite import limits
from theodolite.embedder import as_item, listed
from theodolite.engine import Engine, Progress, check_whole
from theodolite.errors import RequestError
from theodolite.values import ImageItem, Pair, Row, Scores, TextItem


class Reranker(Engine):
    """A loaded reranker. Make one with `theodolite.load_reranker`."""

    @property
    def kind(self) -> str:
        """``sequence_classifier``, ``generative_text`` or ``generative_vl``."""
        return self.profile.kind or "unknown"

    def rank(
        self,
        query: Any,
        documents: Sequence[Any],
        *,
        instruction: str | None = None,
        raw_scores: bool = False,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Scores:
        """Score every document for the query, in the order of the documents.

        :param query: a text, a PIL image, or an item; likewise each document.
        :param instruction: used by generative rerankers; others refuse it.
        :param raw_scores: logits instead of probabilities.
        :returns: scores ``[N]`` float64; ``scores.ranking()`` orders them.
        :raises RequestError: for an empty or unservable query, document or instruction.
        """
        check_whole("batch_size", batch_size)
        rows = self.encode(self.pairs(query, documents), self.instruction(instruction))
        logits = self.run(rows, batch_size or self.profile.batch_size or limits.RERANK_BATCH, progress)
        return self.finish(rows, logits, raw_scores=raw_scores)

    def instruction(self, text: str | None) -> str | None:
        """The instruction as it is used: blank is none.

        :raises RequestError: for one that this kind of reranker has no place for.
        """
        text = text if text and text.strip() else None
        if text is not None and not self.profile.instruction:
            raise RequestError(f"instruction is not supported by a {self.kind} reranker")
        return text

    def pairs(self, query: Any, documents: Sequence[Any]) -> list[Pair]:
        """The query with each document.

        :raises RequestError: naming the item that is empty or an image this model cannot see.
        """
        if isinstance(documents, str) or not (given := listed("documents", documents)):
            raise RequestError("documents must be a non-empty list")
        first = self._side(query, "query")
        return [Pair(first, self._side(document, f"documents[{i}]")) for i, document in enumerate(given)]

    def _side(self, value: Any, where: str) -> TextItem | ImageItem:
        item = as_item(value)
        if isinstance(item, TextItem):
            if not item.text.strip():
                raise RequestError(f"{where} is empty")
            return item
        if not isinstance(item, ImageItem):
            raise RequestError(f"{where} should be a text or an image")
        if not self.profile.images:
            raise RequestError(self.refuse_image(where))
        return item

    def finish(self, rows: Sequence[Row], logits: Sequence[np.ndarray], *, raw_scores: bool = False) -> Scores:
        """Probabilities from logits, in float64 so that large logits stay apart. Needs no model; any thread."""
        wide = np.asarray(logits, dtype=np.float64)
        scores = wide if raw_scores else sigmoid(wide)
        tokens, cut = sum(row.prompt_tokens for row in rows), sum(row.truncated for row in rows)
        return Scores(scores, tokens, self.kind, cut)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-x))``, without overflow on either side."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))
