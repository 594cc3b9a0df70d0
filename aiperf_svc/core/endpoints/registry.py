"""The endpoints by type."""

from aiperf_svc.config import endpoint as config
from aiperf_svc.core.endpoints.audio_transcription import AUDIO_TRANSCRIPTION
from aiperf_svc.core.endpoints.base import Endpoint
from aiperf_svc.core.endpoints.chat import CHAT
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from aiperf_svc.core.endpoints.custom import custom_endpoint
from aiperf_svc.core.endpoints.embeddings import EMBEDDINGS
from aiperf_svc.core.endpoints.huggingface_generate import HUGGINGFACE_GENERATE
from aiperf_svc.core.endpoints.image_generation import IMAGE_GENERATION
from aiperf_svc.core.endpoints.messages import MESSAGES
from aiperf_svc.core.endpoints.rankings import COHERE_RANKINGS, HF_TEI_RANKINGS, NIM_RANKINGS
from aiperf_svc.core.endpoints.responses import RESPONSES
from aiperf_svc.domain.endpoint_types import EndpointType, Feature

ENDPOINTS: dict[EndpointType, Endpoint] = {
    endpoint.type: endpoint
    for endpoint in (
        CHAT,
        COMPLETIONS,
        EMBEDDINGS,
        RESPONSES,
        MESSAGES,
        HUGGINGFACE_GENERATE,
        COHERE_RANKINGS,
        HF_TEI_RANKINGS,
        NIM_RANKINGS,
        AUDIO_TRANSCRIPTION,
        IMAGE_GENERATION,
    )
}
"""All but those that the config itself describes."""


def endpoint_of(options: config.Endpoint) -> Endpoint:
    """Return the endpoint of a config. Raises ValueError if it describes one of its own badly."""
    if options.type.has(Feature.CUSTOM):
        return custom_endpoint(options)
    return ENDPOINTS[options.type]
