"""Each client as its users call it; its answers are compared with a plain request to /v1/embeddings or /v1/rerank."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import numpy as np
import pytest
from conftest import Server

TEXTS = ["the cat sat on a mat", "paris is the capital of france", "rain"]
QUERY = "where does the cat sit"


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


@pytest.fixture(scope="session")
def vectors(server: Server) -> np.ndarray:
    data = post(f"{server.url}/v1/embeddings", {"input": TEXTS})["data"]
    return np.array([row["embedding"] for row in data])


@pytest.fixture(scope="session")
def scores(server: Server) -> np.ndarray:
    results = post(f"{server.url}/v1/rerank", {"query": QUERY, "documents": TEXTS})["results"]
    return np.array([row["relevance_score"] for row in sorted(results, key=lambda row: row["index"])])


def same(found: Any, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(found, dtype=np.float64), wanted, atol=1e-6)


def ordered(pairs: list[tuple[int, float]], scores: np.ndarray, count: int | None = None) -> None:
    """`pairs` of index and score are the best `count`, best first."""
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]
    assert [index for index, _ in pairs] == best
    same([score for _, score in pairs], scores[best])


# ---------------------------------------------------------------- openai


@pytest.mark.parametrize("options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_openai(server: Server, vectors: np.ndarray, options: dict[str, str]) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    assert server.embedder in [model.id for model in client.models.list().data]
    reply = client.embeddings.create(model=server.embedder, input=TEXTS, **options)
    found = [row.embedding for row in reply.data]
    if options.get("encoding_format") == "base64":
        import base64

        found = [np.frombuffer(base64.b64decode(row), "<f4") for row in found]
    same(found, vectors)
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > len(TEXTS)


def test_openai_dimensions_and_error(server: Server, vectors: np.ndarray) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    cut = np.array(client.embeddings.create(model=server.embedder, input=TEXTS, dimensions=8).data[0].embedding)
    same(cut, vectors[0, :8] / np.linalg.norm(vectors[0, :8]))
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model=server.embedder, input=TEXTS, dimensions=100_000)
    with pytest.raises(openai.BadRequestError, match="no-such-model"):
        client.embeddings.create(model="no-such-model", input=TEXTS)


# ---------------------------------------------------------------- langchain


def test_langchain_openai(server: Server, vectors: np.ndarray) -> None:
    from langchain_openai import OpenAIEmbeddings

    model = OpenAIEmbeddings(
        model=server.embedder, base_url=f"{server.url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    same(model.embed_documents(TEXTS), vectors)
    same(model.embed_query(TEXTS[0]), vectors[0])


def test_langchain_cohere_rerank(server: Server, scores: np.ndarray) -> None:
    from langchain_cohere import CohereRerank

    model = CohereRerank(base_url=server.url, cohere_api_key="none", model=server.reranker, top_n=2)
    found = model.rerank(TEXTS, QUERY)
    ordered([(row["index"], row["relevance_score"]) for row in found], scores, 2)


def test_langchain_jina_rerank(server: Server, scores: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_community.document_compressors import jina_rerank

    monkeypatch.setattr(jina_rerank, "JINA_API_URL", f"{server.url}/v1/rerank")
    model = jina_rerank.JinaRerank(jina_api_key="none", model=server.reranker, top_n=3)
    found = model.rerank(TEXTS, QUERY)
    ordered([(row["index"], row["relevance_score"]) for row in found], scores)


# ---------------------------------------------------------------- llama-index


def test_llama_index_openai_like(server: Server, vectors: np.ndarray) -> None:
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding

    model = OpenAILikeEmbedding(model_name=server.embedder, api_base=f"{server.url}/v1", api_key="none")
    same(model.get_text_embedding_batch(TEXTS), vectors)


def test_llama_index_tei_embed(server: Server, vectors: np.ndarray) -> None:
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

    model = TextEmbeddingsInference(model_name=server.embedder, base_url=server.url, text_instruction=" ", timeout=30)
    same(model.get_text_embedding_batch(TEXTS), vectors)


def test_llama_index_tei_rerank(server: Server, scores: np.ndarray) -> None:
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    model = TextEmbeddingInference(base_url=server.url, top_n=2, model_name=server.reranker)
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(i)), score=0.0) for i, text in enumerate(TEXTS)]
    found = model.postprocess_nodes(nodes, query_str=QUERY)
    ordered([(int(node.node.node_id), node.score) for node in found], scores, 2)


def test_llama_index_jina_rerank(server: Server, scores: np.ndarray) -> None:
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    model = JinaRerank(api_key="none", model=server.reranker, top_n=3, base_url=f"{server.url}/v1")
    nodes = [NodeWithScore(node=TextNode(text=text, id_=str(i)), score=0.0) for i, text in enumerate(TEXTS)]
    found = model.postprocess_nodes(nodes, query_str=QUERY)
    ordered([(int(node.node.node_id), node.score) for node in found], scores)


# ---------------------------------------------------------------- litellm


@pytest.mark.parametrize(
    ("provider", "path"),
    [("openai", "/v1"), ("hosted_vllm", "/v1"), ("infinity", ""), ("jina_ai", "/v1")],
)
def test_litellm_embedding(server: Server, vectors: np.ndarray, provider: str, path: str) -> None:
    import litellm

    reply = litellm.embedding(
        f"{provider}/{server.embedder}", TEXTS, api_base=f"{server.url}{path}", api_key="none", timeout=30
    )
    same([row["embedding"] for row in reply.data], vectors)


@pytest.mark.parametrize(
    ("provider", "path", "objects"),
    [
        ("infinity", "", False),
        ("jina_ai", "/v1/rerank", False),
        ("cohere", "/v2/rerank", False),
        ("hosted_vllm", "", True),
        ("huggingface", "", False),
    ],
)
def test_litellm_rerank(
    server: Server, object_server: Server, scores: np.ndarray, provider: str, path: str, objects: bool
) -> None:
    import litellm

    url = (object_server if objects else server).url
    reply = litellm.rerank(
        model=f"{provider}/{server.reranker}",
        query=QUERY,
        documents=TEXTS,
        top_n=2,
        api_base=f"{url}{path}",
        api_key="none",
        timeout=30,
    )
    ordered([(row["index"], row["relevance_score"]) for row in reply.results], scores, 2)


# ---------------------------------------------------------------- cohere


def test_cohere_v1(server: Server, scores: np.ndarray) -> None:
    import cohere

    reply = cohere.Client(api_key="none", base_url=server.url).rerank(
        query=QUERY, documents=TEXTS, model=server.reranker, top_n=2
    )
    ordered([(row.index, row.relevance_score) for row in reply.results], scores, 2)


def test_cohere_v2(server: Server, vectors: np.ndarray, scores: np.ndarray) -> None:
    import cohere

    client = cohere.ClientV2(api_key="none", base_url=server.url)
    reply = client.rerank(query=QUERY, documents=TEXTS, model=server.reranker, top_n=2)
    ordered([(row.index, row.relevance_score) for row in reply.results], scores, 2)
    embedded = client.embed(texts=TEXTS, model=server.embedder, input_type="search_document", embedding_types=["float"])
    same(embedded.embeddings.float_, vectors)


# ---------------------------------------------------------------- rerankers, huggingface_hub


@pytest.mark.parametrize("provider", ["cohere", "jina"])
def test_rerankers_api(server: Server, scores: np.ndarray, provider: str) -> None:
    from rerankers.models.api_rankers import APIRanker

    model = APIRanker(server.reranker, "none", provider, url=f"{server.url}/v1/rerank")
    found = model.rank(QUERY, TEXTS)
    ordered([(row.document.doc_id, row.score) for row in found.results], scores)


def test_huggingface_hub(server: Server, vectors: np.ndarray) -> None:
    from huggingface_hub import InferenceClient

    for path in ("/embed", ""):
        client = InferenceClient(f"{server.url}{path}")
        same(np.squeeze(client.feature_extraction(TEXTS[0])), vectors[0])
