"""The shape of synthetic prompts: lengths, mixtures, shared prefixes, conversations."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model


class Length(Model):
    """A distribution of whole numbers, such as token counts. Values below one become one."""

    mean: Annotated[float, Field(gt=0)]
    """Average; in a uniform distribution it follows from the limits."""
    stddev: Annotated[float, Field(ge=0)] = 0.0
    distribution: Literal["normal", "lognormal", "uniform"] = "normal"
    """`mean` and `stddev` are those of the values also where the distribution is lognormal."""
    min: Annotated[int, Field(gt=0)] | None = None
    """Smaller values become this one."""
    max: Annotated[int, Field(gt=0)] | None = None
    """Larger values become this one."""

    @model_validator(mode="before")
    @classmethod
    def _mean_of_limits(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("distribution") != "uniform":
            return data
        try:
            mean = (data["min"] + data["max"]) / 2
        except (KeyError, TypeError):
            return {"mean": 1, **data}  # The other validator reports the mistake.
        return {"mean": mean, **data}

    @model_validator(mode="after")
    def _limits_fit(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"{{min}} {self.min} is above {{max}} {self.max}")
        if self.distribution != "uniform":
            return self
        if self.min is None or self.max is None:
            raise ValueError("{distribution} uniform needs {min} and {max}")
        if self.stddev or self.mean != (self.min + self.max) / 2:
            raise ValueError(
                "{distribution} uniform is given by {min} and {max}; leave out {mean} and {stddev}"
            )
        return self

    @property
    def mean_within_limits(self) -> float:
        """Mean of the drawn values after the limits: that of a censored distribution."""
        low, high, mean = float(self.min or 1), float(self.max or math.inf), self.mean
        if self.distribution == "uniform" or self.stddev < mean * 1e-9:
            return min(max(mean, low), high)
        if self.distribution == "lognormal":
            spread = math.sqrt(math.log1p((self.stddev / mean) ** 2))
            middle = math.log(mean) - spread**2 / 2
            begin, end = ((math.log(each) - middle) / spread for each in (low, high))
            within = mean * (_normal_cdf(end - spread) - _normal_cdf(begin - spread))
        else:
            begin, end = ((each - mean) / self.stddev for each in (low, high))
            at_begin, at_end = (math.exp(-each * each / 2) for each in (begin, end))
            within = mean * (_normal_cdf(end) - _normal_cdf(begin))
            within += self.stddev * (at_begin - at_end) / math.sqrt(2 * math.pi)
        return low * _normal_cdf(begin) + (self.max or 0) * _normal_cdf(-end) + within

    @property
    def max_deviation(self) -> float:
        """An upper bound of the standard deviation of what is drawn: limits only lower it."""
        width = (self.max or math.inf) - (self.min or 1)
        if self.distribution == "uniform":
            return math.sqrt(width * (width + 2) / 12)
        return min(self.stddev, width / 2)


def _normal_cdf(value: float) -> float:
    """Return the share of the standard normal distribution below a value."""
    return math.erfc(-value / math.sqrt(2)) / 2


class Passages(Model):
    """The texts that a synthetic request asks a server to rank."""

    number: Length = Length(mean=1)
    """Passages in each request of a ranking."""
    tokens: Length = Length(mean=550)
    """Tokens of a passage."""


class Shape(Model):
    """One kind of request in a mixture."""

    weight: Annotated[float, Field(gt=0)]
    """Share of the requests, relative to the other weights."""
    input_tokens: Length
    output_tokens: Length | None = None


class Prefix(Model):
    """Shared tokens at the start of synthetic prompts, which a server can take from its prefix
    cache. They precede those of `input_tokens`."""

    system_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens of a synthetic system prompt that all requests share."""
    system_prompt: Annotated[str, Field(min_length=1)] | None = None
    """Text of the shared system prompt, instead of a synthetic one."""
    groups: Annotated[int, Field(ge=0)] = 0
    """Number of different prefixes. Each is shared by the same number of requests."""
    tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens of each of these prefixes."""
    context_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens at the start of each conversation, after the prefixes. Only the turns of the same
    conversation share them."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if bool(self.groups) != bool(self.tokens):
            raise ValueError("{groups} and {tokens} need each other")
        if self.system_prompt is not None and self.system_tokens:
            raise ValueError("{system_prompt} is the text itself; leave out {system_tokens}")
        return self


class Delay(Model):
    """A normal distribution of milliseconds, cut off below zero."""

    mean: Annotated[float, Field(ge=0)] = 0.0
    stddev: Annotated[float, Field(ge=0)] = 0.0


class Turns(Model):
    """Turns of a synthetic conversation. Each sends the whole history with the real responses."""

    number: Length = Length(mean=1)
    """Turns of a synthetic conversation."""
    delay_ms: Delay = Delay()
    """Milliseconds between a response and the next turn."""


class ToolResults(Model):
    """Tool results whose text or delay the dataset lacks."""

    tokens: Length = Length(mean=128)
    """Tokens of a result whose length the file does not state."""
    delay_ms: Delay = Delay()
    """Milliseconds from the end of a response that calls tools to their results."""


Sampling = Literal["random", "shuffled", "sequential"]
"""Order in which the files of a folder are used: each chosen at random, or all once before any is
repeated."""


def _one_if_described(data: Any) -> Any:
    """Return the settings of pictures or sounds with a default number of one if there are any
    settings."""
    return {"number": 1, **data} if isinstance(data, Mapping) and data else data


def _check_sampling(source: "Images | Sounds") -> None:
    """Raise ValueError for an order of files without a folder."""
    if source.folder is None and source._is_set("sampling"):
        raise ValueError("{sampling} needs {folder}: it is the order in which its files are chosen")


SIDE = Length(mean=512)
"""Width or height of pictures that are made or scaled, in pixels, if none is set."""


class Images(Model):
    """Images of each synthetic request: noise, or the files of a folder."""

    number: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Images in each synthetic request, or 1 if another setting of images is set."""
    width: Length | None = None
    """Width in pixels. Default: 512."""
    height: Length | None = None
    """Height in pixels. Default: 512."""
    format: Literal["png", "jpeg", "random"] = "png"
    """Format of synthetic images: `png`, `jpeg`, or `random` for either, drawn for each image. JPEG
    needs the extra `media`."""
    folder: Annotated[str, Field(min_length=1)] | None = None
    """Folder of images to send instead of noise. They are scaled only if `width` or `height` is
    set, which needs the extra `media`."""
    sampling: Sampling = "random"
    """Order in which files of the folder are chosen."""

    _default_number = model_validator(mode="before")(_one_if_described)

    @property
    def is_scaled(self) -> bool:
        """Whether the pictures of a folder get another size."""
        has_size = self.width is not None or self.height is not None
        return self.folder is not None and has_size

    @property
    def size(self) -> tuple[Length, Length]:
        """Width and height of generated or scaled pictures."""
        return self.width or SIDE, self.height or SIDE

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        _check_sampling(self)
        if self.folder is not None and self._is_set("format") and not self.is_scaled:
            raise ValueError(
                "{format} needs {width} or {height}: the images of {folder} are otherwise sent "
                "as they are"
            )
        return self


class Seconds(Model):
    """A normal distribution of seconds, cut off below a tenth."""

    mean: Annotated[float, Field(gt=0)] = 10.0
    stddev: Annotated[float, Field(ge=0)] = 0.0


MP3_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
"""Sample rates of MPEG-1, 2 and 2.5 layer III."""


class Sounds(Model):
    """Sounds of each synthetic request: noise, or the files of a folder."""

    number: Annotated[int, Field(ge=0, le=1_000)] = 0
    """Sounds in each synthetic request, or 1 if another setting of sounds is set."""
    seconds: Seconds = Seconds()
    """Length of a synthetic sound in seconds."""
    sample_rates: Annotated[
        tuple[Annotated[int, Field(ge=1_000, le=192_000)], ...], Field(min_length=1)
    ] = (16_000,)
    """Samples per second. If there are several values, one is chosen at random for each sound."""
    depths: Annotated[tuple[Literal[8, 16, 24, 32], ...], Field(min_length=1)] = (16,)
    """Bits per sample of a WAV. If there are several values, one is chosen at random for each
    sound."""
    channels: Annotated[int, Field(ge=1, le=2)] = 1
    """Channels of a synthetic sound, 1 or 2."""
    format: Literal["wav", "mp3"] = "wav"
    """Format of synthetic sounds. MP3 needs the extra `media`."""
    folder: Annotated[str, Field(min_length=1)] | None = None
    """Folder of sounds to send, unchanged, instead of noise."""
    sampling: Sampling = "random"
    """Order in which files of the folder are chosen."""

    _default_number = model_validator(mode="before")(_one_if_described)

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        _check_sampling(self)
        made = self._first_set("seconds", "sample_rates", "depths", "channels", "format")
        if made and self.folder is not None:
            raise ValueError(
                f"{{{made}}} is for synthetic sounds; those of {{folder}} are sent unchanged"
            )
        if self.format == "mp3" and self._is_set("depths"):
            raise ValueError("{depths} are those of a WAV; {format} mp3 has none")
        for rate in self.sample_rates if self.format == "mp3" else ():
            if rate not in MP3_RATES:
                raise ValueError(
                    f"{{sample_rates}} {rate}: {{format}} mp3 has {', '.join(map(str, MP3_RATES))}"
                )
        return self
