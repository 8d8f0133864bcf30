"""Tool selection: pick the tools that fit a request, by keywords, by meaning or by a model. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.models.openai_embeddings import OpenAIEmbeddings as OpenAIEmbeddings
    from callgate.runtime.tool_system.discovery import Discovery as Discovery
    from callgate.tools.picking.embedding import Embedder as Embedder
    from callgate.tools.picking.embedding import EmbeddingCache as EmbeddingCache
    from callgate.tools.picking.embedding_store import StoredEmbeddings as StoredEmbeddings
    from callgate.tools.picking.filters import PickContext as PickContext
    from callgate.tools.picking.index import ToolIndex as ToolIndex
    from callgate.tools.picking.llm import Cascade as Cascade
    from callgate.tools.picking.llm import CascadeStage as CascadeStage
    from callgate.tools.picking.llm import LLMScorer as LLMScorer
    from callgate.tools.picking.llm import Mixture as Mixture
    from callgate.tools.picking.minilm import MiniLM as MiniLM
    from callgate.tools.picking.pick import pick_tools as pick_tools
    from callgate.tools.picking.results import Excluded as Excluded
    from callgate.tools.picking.results import PickResult as PickResult
    from callgate.tools.picking.results import Picks as Picks
    from callgate.tools.picking.results import Provenance as Provenance
    from callgate.tools.picking.results import Score as Score
    from callgate.tools.picking.scorers import keyword_overlap as keyword_overlap
    from callgate.tools.picking.semantic import SemanticScorer as SemanticScorer
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Cascade": "callgate.tools.picking.llm",
            "CascadeStage": "callgate.tools.picking.llm",
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
