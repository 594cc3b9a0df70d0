"""The APIs that a target can speak, and what each can carry.

Configs are checked by this table, and flags, messages and docs list the names from it. The
behaviour of each API is in `core/endpoints`. The module imports no pydantic, since the flags of
every command are made from it.
"""

from enum import Flag, StrEnum, auto
from typing import Self


class Feature(Flag):
    """What an API can carry, as far as the checks of a config depend on it."""

    TEXT = auto()
    """It generates text token by token."""
    STREAM = auto()
    """It can stream its response."""
    FORCED_LENGTH = auto()
    """Requests may have `min_tokens` and `ignore_eos`, which force an output length."""
    MESSAGES = auto()
    """Prompts are messages with roles, which may have pictures."""
    CONVERSATION = auto()
    """A request may contain the earlier turns of its conversation."""
    BATCH = auto()
    """A request may have several texts."""
    SOUND = auto()
    """A request may contain audio."""
    SOUND_ALONE = auto()
    """A synthetic request is one audio clip without text."""
    RANKING = auto()
    """A request is a query and the passages to rank."""
    QUESTIONS = auto()
    """It can answer the questions of a quality gate."""
    LM_EVAL = auto()
    """lm_eval can use it."""
    LOGPROBS = auto()
    """It reports the log probabilities of tokens as OpenAI's APIs do."""
    CUSTOM = auto()
    """The config describes the API."""


NO_FEATURE = Feature(0)
_GENERATES = Feature.TEXT | Feature.STREAM | Feature.FORCED_LENGTH | Feature.QUESTIONS
_EVALUATES = _GENERATES | Feature.LM_EVAL | Feature.LOGPROBS


class EndpointType(StrEnum):
    """The HTTP API that the target speaks. Each is defined by its name and its features."""

    features: Feature

    def __new__(cls, name: str, features: Feature) -> Self:
        """Make the member with this name, and attach its features."""
        member = str.__new__(cls, name)
        member._value_ = name
        member.features = features
        return member

    CHAT = "chat", _EVALUATES | Feature.MESSAGES | Feature.CONVERSATION | Feature.SOUND
    COMPLETIONS = "completions", _EVALUATES | Feature.BATCH
    EMBEDDINGS = "embeddings", Feature.BATCH
    RESPONSES = "responses", _GENERATES | Feature.MESSAGES | Feature.CONVERSATION
    MESSAGES = "messages", _GENERATES | Feature.MESSAGES | Feature.CONVERSATION
    HUGGINGFACE_GENERATE = "huggingface_generate", Feature.TEXT | Feature.STREAM
    COHERE_RANKINGS = "cohere_rankings", Feature.RANKING
    HF_TEI_RANKINGS = "hf_tei_rankings", Feature.RANKING
    NIM_RANKINGS = "nim_rankings", Feature.RANKING
    AUDIO_TRANSCRIPTION = (
        "audio_transcription",
        Feature.TEXT | Feature.STREAM | Feature.SOUND | Feature.SOUND_ALONE,
    )
    IMAGE_GENERATION = "image_generation", Feature.STREAM
    TEMPLATE = "template", Feature.TEXT | Feature.STREAM | Feature.CUSTOM
    RAW = "raw", Feature.TEXT | Feature.STREAM | Feature.CUSTOM

    def has(self, feature: Feature) -> bool:
        return feature in self.features


def types_with(feature: Feature) -> tuple[EndpointType, ...]:
    return tuple(each for each in EndpointType if each.has(feature))


def names_with(feature: Feature = NO_FEATURE) -> str:
    """Return the names of the APIs with a feature (default: of all), as a message lists them."""
    *names, last = types_with(feature)
    return f"{', '.join(names)} or {last}" if names else last
