"""Clients of model providers, their replies, and conversations with a model. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.conversation.converse import ConverseOptions, converse, converse_events
    from callgate.runtime.conversation.events import (
        Called,
        CallFinished,
        CallsStarted,
        Conversation,
        ConversationEvent,
        Ended,
        Ending,
        RoundEnded,
        RoundStarted,
    )
    from callgate.runtime.conversation.loop import Model
    from callgate.runtime.conversation.state import StateRefused
    from callgate.runtime.models import codec, codecs
    from callgate.runtime.models.anthropic import Anthropic
    from callgate.runtime.models.gemini import Gemini
    from callgate.runtime.models.ollama import Ollama
    from callgate.runtime.models.openai_chat import OpenAIChat
    from callgate.runtime.models.openai_embeddings import OpenAIEmbeddings
    from callgate.runtime.models.openai_responses import OpenAIResponses
    from callgate.runtime.models.wire.client import Client
    from callgate.runtime.models.wire.codec import WireError
    from callgate.runtime.models.wire.reply import CallDelta, CallReady, Done, ReasoningDelta, Reply, TextDelta, Usage
    from callgate.runtime.models.wire.retry_policy import Retries, Timeouts
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Anthropic": "callgate.runtime.models.anthropic",
            "CallDelta": "callgate.runtime.models.wire.reply",
            "CallFinished": "callgate.runtime.conversation.events",
            "CallReady": "callgate.runtime.models.wire.reply",
            "Called": "callgate.runtime.conversation.events",
            "CallsStarted": "callgate.runtime.conversation.events",
            "Client": "callgate.runtime.models.wire.client",
            "Conversation": "callgate.runtime.conversation.events",
            "ConversationEvent": "callgate.runtime.conversation.events",
            "ConverseOptions": "callgate.runtime.conversation.converse",
            "Done": "callgate.runtime.models.wire.reply",
            "Ended": "callgate.runtime.conversation.events",
            "Ending": "callgate.runtime.conversation.events",
            "Gemini": "callgate.runtime.models.gemini",
            "Model": "callgate.runtime.conversation.loop",
            "Ollama": "callgate.runtime.models.ollama",
            "OpenAIChat": "callgate.runtime.models.openai_chat",
            "OpenAIEmbeddings": "callgate.runtime.models.openai_embeddings",
            "OpenAIResponses": "callgate.runtime.models.openai_responses",
            "ReasoningDelta": "callgate.runtime.models.wire.reply",
            "Reply": "callgate.runtime.models.wire.reply",
            "Retries": "callgate.runtime.models.wire.retry_policy",
            "RoundEnded": "callgate.runtime.conversation.events",
            "RoundStarted": "callgate.runtime.conversation.events",
            "StateRefused": "callgate.runtime.conversation.state",
            "TextDelta": "callgate.runtime.models.wire.reply",
            "Timeouts": "callgate.runtime.models.wire.retry_policy",
            "Usage": "callgate.runtime.models.wire.reply",
            "WireError": "callgate.runtime.models.wire.codec",
            "codec": "callgate.runtime.models",
            "codecs": "callgate.runtime.models",
            "converse": "callgate.runtime.conversation.converse",
            "converse_events": "callgate.runtime.conversation.converse",
        },
    )

__all__ = [
    "Anthropic",
    "CallDelta",
    "CallFinished",
    "CallReady",
    "Called",
    "CallsStarted",
    "Client",
    "Conversation",
    "ConversationEvent",
    "ConverseOptions",
    "Done",
    "Ended",
    "Ending",
    "Gemini",
    "Model",
    "Ollama",
    "OpenAIChat",
    "OpenAIEmbeddings",
    "OpenAIResponses",
    "ReasoningDelta",
    "Reply",
    "Retries",
    "RoundEnded",
    "RoundStarted",
    "StateRefused",
    "TextDelta",
    "Timeouts",
    "Usage",
    "WireError",
    "codec",
    "codecs",
    "converse",
    "converse_events",
]
