"""Tool selection: pick the tools that fit a request, by keywords, by meaning or by a model. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.models.openai_embeddings import OpenAIEmbeddings
    from callgate.runtime.tool_system.discovery import Discovery
    from callgate.tools.picking.embedding import Embedder, EmbeddingCache
    from callgate.tools.picking.embedding_store import StoredEmbeddings
    from callgate.tools.picking.filters import PickContext
    from callgate.tools.picking.index import ToolIndex
    from callgate.tools.picking.llm import Cascade, LLMScorer, Mixture
    from callgate.tools.picking.llm import Stage as CascadeStage
    from callgate.tools.picking.minilm import MiniLM
    from callgate.tools.picking.pick import pick_tools
    from callgate.tools.picking.results import Excluded, PickResult, Picks, Provenance, Score
    from callgate.tools.picking.scorers import keyword_overlap
    from callgate.tools.picking.semantic import SemanticScorer
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Cascade": "callgate.tools.picking.llm",
            "CascadeStage": "callgate.tools.picking.llm:Stage",
            "Discovery": "callgate.runtime.tool_system.discovery",
            "Embedder": "callgate.tools.picking.embedding",
            "EmbeddingCache": "callgate.tools.picking.embedding",
            "Excluded": "callgate.tools.picking.results",
            "LLMScorer": "callgate.tools.picking.llm",
            "MiniLM": "callgate.tools.picking.minilm",
            "Mixture": "callgate.tools.picking.llm",
            "OpenAIEmbeddings": "callgate.runtime.models.openai_embeddings",
            "PickContext": "callgate.tools.picking.filters",
            "PickResult": "callgate.tools.picking.results",
            "Picks": "callgate.tools.picking.results",
            "Provenance": "callgate.tools.picking.results",
            "Score": "callgate.tools.picking.results",
            "SemanticScorer": "callgate.tools.picking.semantic",
            "StoredEmbeddings": "callgate.tools.picking.embedding_store",
            "ToolIndex": "callgate.tools.picking.index",
            "keyword_overlap": "callgate.tools.picking.scorers",
            "pick_tools": "callgate.tools.picking.pick",
        },
    )

__all__ = [
    "Cascade",
    "CascadeStage",
    "Discovery",
    "Embedder",
    "EmbeddingCache",
    "Excluded",
    "LLMScorer",
    "MiniLM",
    "Mixture",
    "OpenAIEmbeddings",
    "PickContext",
    "PickResult",
    "Picks",
    "Provenance",
    "Score",
    "SemanticScorer",
    "StoredEmbeddings",
    "ToolIndex",
    "keyword_overlap",
    "pick_tools",
]
