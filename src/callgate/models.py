"""Clients of model providers, their replies, and conversations with a model. Each name is imported on first use."""

from typing import TYPE_CHECKING

from callgate._lazy import lazy

if TYPE_CHECKING:
    from callgate.runtime.conversation.converse import ConverseOptions as ConverseOptions
    from callgate.runtime.conversation.converse import converse as converse
    from callgate.runtime.conversation.converse import converse_events as converse_events
    from callgate.runtime.conversation.events import Called as Called
    from callgate.runtime.conversation.events import CallFinished as CallFinished
    from callgate.runtime.conversation.events import CallsStarted as CallsStarted
    from callgate.runtime.conversation.events import Conversation as Conversation
    from callgate.runtime.conversation.events import ConversationEvent as ConversationEvent
    from callgate.runtime.conversation.events import Ended as Ended
    from callgate.runtime.conversation.events import Ending as Ending
    from callgate.runtime.conversation.events import RoundEnded as RoundEnded
    from callgate.runtime.conversation.events import RoundRestarted as RoundRestarted
    from callgate.runtime.conversation.events import RoundStarted as RoundStarted
    from callgate.runtime.conversation.loop import Model as Model
    from callgate.runtime.conversation.state import StateRefused as StateRefused
    from callgate.runtime.models import codec as codec
    from callgate.runtime.models import codecs as codecs
    from callgate.runtime.models.anthropic import Anthropic as Anthropic
    from callgate.runtime.models.gemini import Gemini as Gemini
    from callgate.runtime.models.ollama import Ollama as Ollama
    from callgate.runtime.models.openai_chat import OpenAIChat as OpenAIChat
    from callgate.runtime.models.openai_embeddings import OpenAIEmbeddings as OpenAIEmbeddings
    from callgate.runtime.models.openai_responses import OpenAIResponses as OpenAIResponses
    from callgate.runtime.models.wire.client import Client as Client
    from callgate.runtime.models.wire.codec import WireError as WireError
    from callgate.runtime.models.wire.reply import CallDelta as CallDelta
    from callgate.runtime.models.wire.reply import CallReady as CallReady
    from callgate.runtime.models.wire.reply import Done as Done
    from callgate.runtime.models.wire.reply import ReasoningDelta as ReasoningDelta
    from callgate.runtime.models.wire.reply import Reply as Reply
    from callgate.runtime.models.wire.reply import TextDelta as TextDelta
    from callgate.runtime.models.wire.reply import Usage as Usage
    from callgate.runtime.models.wire.retry_policy import Retries as Retries
    from callgate.runtime.models.wire.retry_policy import Timeouts as Timeouts
    from callgate.tools.arguments.hydration import successes as successes
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
            "RoundRestarted": "callgate.runtime.conversation.events",
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
            "successes": "callgate.tools.arguments.hydration",
        },
    )
