"""The endpoints by type."""

from aiperf_svc.config.models import EndpointType
from aiperf_svc.core.endpoints.base import Endpoint
from aiperf_svc.core.endpoints.chat import CHAT
from aiperf_svc.core.endpoints.completions import COMPLETIONS
from aiperf_svc.core.endpoints.embeddings import EMBEDDINGS
from aiperf_svc.core.endpoints.huggingface_generate import HUGGINGFACE_GENERATE
from aiperf_svc.core.endpoints.messages import MESSAGES
from aiperf_svc.core.endpoints.rankings import COHERE_RANKINGS, HF_TEI_RANKINGS, NIM_RANKINGS
from aiperf_svc.core.endpoints.responses import RESPONSES

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
    )
}
