"""MaxSim against its definition, over documents of different lengths; and cosine where there is one vector."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from theodolite import maxsim, maxsim_matrix, maxsim_padded, similarity


def unit(rng, *shape):
    rows = rng.standard_normal(shape)
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def by_definition(query, document):
    return sum(max(float(np.dot(q, d)) for d in document) for q in query)


def test_the_sum_of_best_products_whatever_the_lengths():
    rng = np.random.default_rng(0)
    queries = [unit(rng, length, 8) for length in (1, 5)]
    documents = [unit(rng, length, 8) for length in (1, 9, 2, 1, 30)]
    wanted = np.array([[by_definition(q, d) for d in documents] for q in queries])
    np.testing.assert_allclose(maxsim_matrix(queries, documents), wanted, atol=1e-5)
    np.testing.assert_allclose([[maxsim(q, d) for d in documents] for q in queries], wanted, atol=1e-5)

    longest = max(map(len, documents))
    padded = np.stack([np.pad(d, ((0, longest - len(d)), (0, 0))) for d in documents])
    mask = np.array([[1] * len(d) + [0] * (longest - len(d)) for d in documents])
    for query, row in zip(queries, wanted, strict=True):
        made = maxsim_padded(mx.array(query), mx.array(padded), mx.array(mask))
        np.testing.assert_allclose(np.array(made), row, atol=1e-5)


def test_padding_is_no_match_for_a_document_that_points_away():
    query, away = np.array([[1.0, 0.0]], np.float32), np.array([[-1.0, 0.0], [0.0, 0.0]], np.float32)
    made = maxsim_padded(mx.array(query), mx.array(away[None]), mx.array([[1, 0]]))
    assert made.tolist() == [-1.0]


def test_the_query_comes_first():
    one, two = np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)[:1]
    assert (maxsim(one, two), maxsim(two, one)) == (1.0, 1.0)
    assert maxsim(np.concatenate([one, one]), two) == 2.0


def test_a_full_match_is_the_number_of_query_rows():
    rows = unit(np.random.default_rng(1), 7, 16)
    assert abs(maxsim(rows, rows) - 7) < 1e-5


def test_the_name_in_the_package_stays_a_function():
    """A module of the same name would take its place once it is imported."""
    import theodolite

    for name in theodolite.__all__:
        first = getattr(theodolite, name)
        assert getattr(theodolite, name) is first
        assert callable(first)


def test_similarity_is_cosine_or_maxsim() -> None:
    rng = np.random.default_rng(1)
    queries, documents = (rng.standard_normal((n, 8)).astype(np.float32) for n in (2, 3))
    documents[1] = 0
    sizes = np.linalg.norm(queries, axis=1)[:, None] * np.maximum(np.linalg.norm(documents, axis=1), 1e-9)
    np.testing.assert_allclose(similarity(queries, documents), queries @ documents.T / sizes, atol=1e-6)
    np.testing.assert_allclose(similarity(list(queries), list(documents)), similarity(queries, documents))
    pages = [unit(rng, length, 8) for length in (2, 5)]
    np.testing.assert_array_equal(similarity(pages[:1], pages), maxsim_matrix(pages[:1], pages))
