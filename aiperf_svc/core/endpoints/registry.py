"""The endpoints by type."""

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints import chat, messages, responses
from aiperf_svc.core.endpoints.audio_transcription import AUDIO_TRANSCRIPTION
from aiperf_svc.core.endpoints.base import Endpoint
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from aiperf_svc.core.endpoints.custom import custom_endpoint
from aiperf_svc.core.endpoints.embeddings import EMBEDDINGS
from aiperf_svc.core.endpoints.history import Conversations
from aiperf_svc.core.endpoints.huggingface_generate import HUGGINGFACE_GENERATE
from aiperf_svc.core.endpoints.image_generation import IMAGE_GENERATION
from aiperf_svc.core.endpoints.rankings import COHERE_RANKINGS, HF_TEI_RANKINGS, NIM_RANKINGS
from aiperf_svc.domain.endpoint_types import EndpointType, Feature

ENDPOINTS: dict[EndpointType, Endpoint] = {
    endpoint.type: endpoint
    for endpoint in (
        chat.CHAT,
        COMPLETIONS,
        EMBEDDINGS,
        responses.RESPONSES,
        messages.MESSAGES,
        HUGGINGFACE_GENERATE,
        COHERE_RANKINGS,
        HF_TEI_RANKINGS,
        NIM_RANKINGS,
        AUDIO_TRANSCRIPTION,
        IMAGE_GENERATION,
    )
}
"""All endpoints, except those that the config itself defines."""


def endpoint_of(options: config.Endpoint) -> Endpoint:
    """Return the endpoint of a config. Raises ValueError if the config defines it wrongly."""
    if options.type.has(Feature.CUSTOM):
        return custom_endpoint(options)
    return ENDPOINTS[options.type]


CONVERSATIONS: dict[EndpointType, Conversations] = {
    EndpointType.CHAT: chat.CONVERSATIONS,
    EndpointType.RESPONSES: responses.CONVERSATIONS,
    EndpointType.MESSAGES: messages.CONVERSATIONS,
}
"""How each API with `Feature.CONVERSATION` represents a conversation."""
