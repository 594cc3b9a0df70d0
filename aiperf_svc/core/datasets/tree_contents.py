"""Builds the requests of session trees. Their bodies are split into pieces, since the prompts of an
agent repeat each other. A tree with prompts of 100,000 tokens stores each block or message once,
and a request is a list of piece numbers, which the worker joins when it sends the request.

A hash id stands for the same tokens everywhere in its tree, exactly one block of them, and for
different tokens in every other tree. The rest of a prompt after its blocks belongs to the request
alone. Blocks are words after a space (`block_texts`), which tokenizers keep apart, so the tokens of
a prompt are those of its blocks. As a check, the longest prompt of each stream is encoded again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.dataset import CacheBust
from aiperf_svc.config.endpoint import Endpoint
from aiperf_svc.core.datasets.base import Purpose, TokenCounter, generator
from aiperf_svc.core.datasets.block_texts import BlockTexts, drawn_words
from aiperf_svc.core.datasets.cache_bust import marked_messages, marker_of, run_markers
from aiperf_svc.core.datasets.session_trees import (
    Message,
    ResponseOf,
    TracedTree,
    TreeRequest,
    common_prefix,
)
from aiperf_svc.core.datasets.synthetic import draw_lengths
from aiperf_svc.core.endpoints.base import SYSTEM_ROLES, Prompt
from aiperf_svc.core.endpoints.history import encoded_result
from aiperf_svc.core.endpoints.registry import CONVERSATIONS, endpoint_of
from aiperf_svc.core.load.model_choice import model_numbers
from aiperf_svc.domain.errors import DatasetError
from aiperf_svc.protocol.messages.dataset import (
    RESPONSE_PIECE,
    Conversation,
    LiveResponse,
    PlannedRequest,
    Turn,
)

_PLACEHOLDER: Final = "aiperf-svc-place-of-the-prompt"
_MASK: Final = 2**64 - 1
_OWN: Final = 0x0E57_5EED_7EE5
"""Separates the words of single requests from those of hash ids."""


class _Frame(msgspec.Struct, frozen=True):
    """The bytes of a body around its prompt."""

    head: bytes
    tail: bytes
    one_token_tail: bytes = b""
    requested_tokens: int = -1


class _Pieces:
    """The distinct pieces of one tree."""

    def __init__(self) -> None:
        self.all: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, piece: bytes) -> int:
        number = self._numbers.get(piece)
        if number is None:
            number = self._numbers[piece] = len(self.all)
            self.all.append(piece)
        return number


class TreeContents:
    """Builds the entries of an agent trace."""

    def __init__(self, config: BenchmarkConfig, counter: TokenCounter | None) -> None:
        self._config = config
        self.counter = counter
        self.seed = config.prompt_seed
        self._endpoint = endpoint_of(config.endpoint)
        self._markers = run_markers(config)
        self._frames: dict[tuple[int | None, str], _Frame] = {}
        self._texts: dict[int, BlockTexts] = {}
        """By block size, since a trace may have several."""

    def entry(self, tree: TracedTree, number: int) -> Conversation:
        """Return the requests of a tree, which is the entry with this number. Raises DatasetError
        for a prompt that the endpoint does not support, or whose tokens differ from the recorded
        number."""
        self._check_live(tree)
        content = _TreeContent(self, tree, number)
        turns = tuple(content.turn(place) for place in range(len(tree.requests)))
        content.check_tokens()
        return Conversation(
            tree.id,
            turns,
            streams=tree.streams,
            pieces=tuple(content.pieces.all),
            live=tuple(content.live),
        )

    def _check_live(self, tree: TracedTree) -> None:
        agentic = self._config.load.agentic
        begins_inside = agentic is not None and (agentic.start.max > 0 or agentic.warmup_requests)
        if begins_inside and any(
            isinstance(each, ResponseOf) for request in tree.requests for each in request.messages
        ):
            raise DatasetError(
                f"{tree.place}: its prompts contain live responses of earlier requests, which a "
                "load that begins inside does not have (load.agentic.start); use `context_mode` "
                "deltas_with_responses, or a start of 0"
            )

    # --- used by the content of one tree ---------------------------------------------------------

    @property
    def sends_ids(self) -> bool:
        return self._config.endpoint.prompt_token_ids

    def encoded_text(self, text: str, *, is_first: bool) -> bytes:
        """Return the bytes of a text within a prompt: inside a JSON string, or as token ids."""
        if not self.sends_ids or self.counter is None:
            return _json_text(text)
        ids = b",".join(b"%d" % each for each in self.counter.encode(text))
        return ids if is_first else b"," + ids

    def marker(self, number: int) -> str:
        """Return the marker of an entry or its placeholder; empty if it has none."""
        if self._config.dataset.cache_bust is CacheBust.NONE:
            return ""
        if self._markers is not None:
            return self._markers.placeholder
        return marker_of(self._config.prompt_seed, number)

    def texts(self, block_size: int) -> BlockTexts:
        if block_size not in self._texts:
            seed = self._config.prompt_seed
            self._texts[block_size] = BlockTexts(seed, block_size, self.counter)
        return self._texts[block_size]

    def prepared(self, request: TreeRequest, marker: str, place: str) -> TreeRequest:
        """Return a request of messages with its marker, if any, and with tools, stop sequences and
        system texts where the API expects them. Raises DatasetError."""
        api, messages = CONVERSATIONS[self._config.endpoint.type], list(request.messages)
        if marker:
            plain = [each for each in messages if not isinstance(each, ResponseOf)]
            marked = iter(marked_messages(plain, self._config.dataset.cache_bust, marker))
            messages = [each if isinstance(each, ResponseOf) else next(marked) for each in messages]
        members = dict(request.members)
        if "tools" in members:
            members["tools"] = api.render_tools(members["tools"])
        if api.stop_key != "stop" and (stops := members.pop("stop", None)) and api.stop_key:
            members[api.stop_key] = [stops] if isinstance(stops, str) else stops
        if api.system_key:
            system = [each for each in messages if _is_system(each)]
            messages = [each for each in messages if not _is_system(each)]
            if not messages:
                raise DatasetError(f"{place}: a prompt needs a message besides those of the system")
            if system:
                members.setdefault(api.system_key, "\n\n".join(map(_text_of, system)))
        return msgspec.structs.replace(request, messages=tuple(messages), members=members)

    def system_of(self, request: TreeRequest) -> str:
        """Return the system texts that are separate from the messages of a request."""
        key = CONVERSATIONS[self._config.endpoint.type].system_key
        found = request.members.get(key) if key else None
        return found if isinstance(found, str) else ""

    def rendered_messages(self, messages: Sequence[Any]) -> bytes:
        """Convert messages of the chat API to the endpoint's form, joined by commas. Raises
        ValueError."""
        return CONVERSATIONS[self._config.endpoint.type].render_messages(messages)

    def encoded_result(self, message: Mapping[str, Any]) -> bytes:
        """Return the content of a tool's result, for a history with live responses. Raises
        ValueError."""
        return encoded_result(message, CONVERSATIONS[self._config.endpoint.type])

    def plan(self, request: TreeRequest) -> PlannedRequest:
        """Return when a request may be sent, with the config's factor and limit applied."""
        plan, dataset = request.plan, self._config.dataset
        delay_ns = round(plan.delay_ns * dataset.delay_factor)
        if dataset.max_delay is not None:
            delay_ns = min(delay_ns, dataset.max_delay)
        start_ns = (
            plan.start_ns if plan.start_ns < 0 else round(plan.start_ns * dataset.delay_factor)
        )
        return msgspec.structs.replace(plan, delay_ns=delay_ns, start_ns=start_ns)

    def output_tokens(self, request: TreeRequest, number: int, place: int) -> int | None:
        dataset, tokens = self._config.dataset, request.output_tokens
        if tokens is None and dataset.output_tokens is not None:
            seed = self._config.random_seed
            rng = generator(seed, Purpose.OUTPUT_LENGTHS, number, place)
            return int(draw_lengths(dataset.output_tokens, 1, rng)[0])
        return tokens

    def options(self, number: int) -> Endpoint:
        """Return the endpoint with the model of an entry."""
        endpoint = self._config.endpoint
        model = endpoint.all_models[int(model_numbers(self._config, np.array([number]))[0])]
        return endpoint.model_copy(update={"model": model})

    def frame(
        self, request: TreeRequest, output_tokens: int | None, options: Endpoint, place: str
    ) -> _Frame:
        """Return the bytes around the prompt of a request to an endpoint with one model."""
        if request.members:
            return self._rendered(request, output_tokens, options, place)
        key = (output_tokens, options.model)
        if key not in self._frames:
            self._frames[key] = self._rendered(request, output_tokens, options, place)
        return self._frames[key]

    def _rendered(
        self, request: TreeRequest, output_tokens: int | None, options: Endpoint, place: str
    ) -> _Frame:
        head, tail, requested = self._parts(request, output_tokens, options, place)
        one_token_tail = b""
        if self._config.load.agentic is not None:
            one_token_tail = self._parts(request, 1, options, place)[1]
        return _Frame(head, tail, one_token_tail, requested)

    def _parts(
        self, request: TreeRequest, output_tokens: int | None, options: Endpoint, place: str
    ) -> tuple[bytes, bytes, int]:
        if request.has_hash_ids:
            prompt, around = (
                Prompt(texts=(_PLACEHOLDER,), output_tokens=output_tokens),
                _PLACEHOLDER.encode(),
            )
            if self.sends_ids:
                around = b'"%b"' % around
        else:
            message = {"role": "user", "content": _PLACEHOLDER}
            key = self._endpoint.prompt_key
            members = {name: each for name, each in request.members.items() if name != key}
            prompt = Prompt(payload={**members, key: [message]}, output_tokens=output_tokens)
            around = msgspec.json.encode(message)
        try:
            rendered = self._endpoint.render(prompt, options)
        except ValueError as error:
            raise DatasetError(f"{place}: {error}") from None
        head, _, tail = rendered.whole.partition(around)
        if request.has_hash_ids and self.sends_ids:
            head, tail = head + b"[", b"]" + tail
        return head, tail, rendered.requested_tokens


class _TreeContent:
    def __init__(self, contents: TreeContents, tree: TracedTree, number: int) -> None:
        self._contents = contents
        self._tree = tree
        self._number = number
        self._options = contents.options(number)
        self._marker = contents.marker(number)
        named = f"{contents.seed}/{tree.id}"
        self._key = int.from_bytes(hashlib.sha256(named.encode()).digest()[:8])
        self.pieces = _Pieces()
        self.live: dict[LiveResponse, int] = {}
        """Live responses in prompts, and their numbers."""
        self._blocks: dict[tuple[int, int, bool], int] = {}
        self._chosen: dict[int, NDArray[np.int64]] = {}
        """Words of each hash id, as indexes into the word list."""
        self._whole_texts = self._make_whole_texts()
        self._before: dict[int, tuple[Sequence[int], list[int]]] = {}
        """Whole blocks of each stream's last prompt, and their pieces."""
        self._longest: dict[int, int] = {}
        """Longest prompt of each stream, by request number."""
        counter = contents.counter
        self._marker_tokens = 0
        if counter is not None and self._marker:
            self._marker_tokens = counter.count(f"{self._marker}\n\na") - counter.count("a")
        self._tokens: dict[str, int] = {}

    def turn(self, place: int) -> Turn:
        contents, request = self._contents, self._tree.requests[place]
        output_tokens = contents.output_tokens(request, self._number, place)
        where = f"{self._tree.place}: request {place}"
        if not request.has_hash_ids:
            request = contents.prepared(request, self._marker, where)
        frame = contents.frame(request, output_tokens, self._options, where)
        if request.has_hash_ids:
            numbers, tokens = self._block_body(request, place, frame)
        else:
            try:
                numbers, tokens = self._message_body(request, frame)
            except ValueError as error:
                raise DatasetError(f"{where}: {error}") from None
        return Turn(
            b"",
            frame.tail,
            input_tokens=tokens,
            requested_tokens=frame.requested_tokens,
            pieces=np.array(numbers, dtype="<u4").tobytes(),
            one_token_tail=frame.one_token_tail,
            plan=contents.plan(request),
        )

    def _block_body(self, request: TreeRequest, place: int, frame: _Frame) -> tuple[list[int], int]:
        texts = self._contents.texts(self._tree.block_size)
        before = [self.pieces.number(frame.head)]
        if self._marker:
            before.append(self.pieces.number(_json_text(f"{self._marker}\n\n")))
        numbers = before + self._block_numbers(texts, request, place)
        stream = request.plan.stream
        longest = self._longest.get(stream)
        if longest is None or self._tree.requests[longest].input_tokens <= request.input_tokens:
            self._longest[stream] = place
        is_counted = self._contents.counter is not None
        return numbers, request.input_tokens + self._marker_tokens if is_counted else -1

    def _block_numbers(self, texts: BlockTexts, request: TreeRequest, place: int) -> list[int]:
        """Return the numbers of the pieces of a prompt. Most prompts continue the previous one in
        their stream."""
        ids, block_size = request.hash_ids, self._tree.block_size
        known, numbers = self._before.get(request.plan.stream, ((), []))
        whole = min(common_prefix(known, ids), request.input_tokens // block_size)
        numbers = numbers[:whole]
        rest = request.input_tokens - whole * block_size
        for hash_id in ids[whole:]:
            size = min(rest, block_size)
            numbers.append(self._block(texts, hash_id, size, is_first=not numbers))
            rest -= size
        of_blocks = numbers[: request.input_tokens // block_size]
        self._before[request.plan.stream] = ids[: len(of_blocks)], of_blocks
        return [*numbers, self._rest(texts, place, rest, is_first=not numbers)] if rest else numbers

    def _block(self, texts: BlockTexts, hash_id: int, size: int, *, is_first: bool) -> int:
        key = hash_id, size, is_first
        number = self._blocks.get(key)
        if number is None:
            text = self._whole_texts.get(hash_id, "")
            if not text or is_first or size < self._tree.block_size:
                text = texts.piece(self._chosen[hash_id], size, is_first=is_first)
            inner = self._contents.encoded_text(text, is_first=is_first)
            number = self._blocks[key] = self.pieces.number(inner)
        return number

    def _make_whole_texts(self) -> dict[int, str]:
        """Return the texts of all hash ids of the tree, as whole blocks after other blocks."""
        ids = list({each for request in self._tree.requests for each in request.hash_ids})
        if not ids:
            return {}
        block_size = self._tree.block_size
        names = np.array([hash_id & _MASK for hash_id in ids], dtype=np.uint64)
        chosen = drawn_words(self._key, names, block_size)
        self._chosen = dict(zip(ids, chosen, strict=True))
        return dict(zip(ids, self._contents.texts(block_size).whole_pieces(chosen), strict=True))

    def _rest(self, texts: BlockTexts, place: int, size: int, *, is_first: bool) -> int:
        (chosen,) = drawn_words(self._key ^ _OWN, np.array([place], dtype=np.uint64), size)
        text = texts.piece(chosen, size, is_first=is_first)
        return self.pieces.number(self._contents.encoded_text(text, is_first=is_first))

    def _message_body(self, request: TreeRequest, frame: _Frame) -> tuple[list[int], int]:
        numbers = [self.pieces.number(frame.head)]
        system = self._contents.system_of(request)
        tokens = self._tokens_of(system) if system else 0
        runs = _runs(request.messages)
        for index, run in enumerate(runs):
            first, before = run[0], runs[index - 1][0] if index else None
            if isinstance(first, ResponseOf):
                following = runs[index + 1] if index + 1 < len(runs) else []
                results = [
                    self._contents.encoded_result(each)
                    for each in following
                    if not isinstance(each, ResponseOf) and _is_result(each)
                ]
                live = LiveResponse(first.request, tuple(results))
                numbers.append(RESPONSE_PIECE + self.live.setdefault(live, len(self.live)))
                tokens = -1
            elif isinstance(before, ResponseOf) and _is_result(first):
                pass  # They follow the response, whose ids they use.
            elif encoded := self._contents.rendered_messages(run):
                is_first = len(numbers) == 1
                numbers.append(self.pieces.number(encoded if is_first else b",%b" % encoded))
                if tokens >= 0:
                    tokens += sum(self._tokens_of(_text_of(message)) for message in run)
        return numbers, tokens if self._contents.counter is not None else -1

    def _tokens_of(self, text: str) -> int:
        counter = self._contents.counter
        if counter is None:
            return 0
        if text not in self._tokens:
            self._tokens[text] = counter.count(text)
        return self._tokens[text]

    def check_tokens(self) -> None:
        """Encode the longest prompt of each stream again. Raises DatasetError if its number of
        tokens differs from the sum of its blocks."""
        counter = self._contents.counter
        if counter is None or not self._longest:
            return
        for place in self._longest.values():
            request = self._tree.requests[place]
            have = self._count(place, counter)
            if have != request.input_tokens:
                raise DatasetError(
                    f"{self._tree.place}: request {place}: tokenizer {counter.name!r} makes "
                    f"{have:,} tokens of its {request.input_tokens:,}: it does not keep words "
                    "apart; use another tokenizer, or none"
                )

    def _count(self, place: int, counter: TokenCounter) -> int:
        """Return the number of tokens of a prompt of blocks, without its marker."""
        request = self._tree.requests[place]
        texts = self._contents.texts(self._tree.block_size)
        numbers = self._block_numbers(texts, request, place)
        inner = b"".join(self.pieces.all[number] for number in numbers)
        if self._contents.sends_ids:
            return len(msgspec.json.decode(b"[%b]" % inner, type=list[int]))
        # In a batch, offsets are not computed.
        (count,) = counter.count_batch([msgspec.json.decode(b'"%b"' % inner, type=str)])
        return count


def _runs(messages: Sequence[Message]) -> list[list[Message]]:
    """Return the messages in order, grouped: consecutive results of tools together, any other
    message alone."""
    runs: list[list[Message]] = []
    for message in messages:
        if runs and _is_result(message) and _is_result(runs[-1][0]):
            runs[-1].append(message)
        else:
            runs.append([message])
    return runs


def _is_result(message: Message) -> bool:
    return not isinstance(message, ResponseOf) and message.get("role") == "tool"


def _is_system(message: Message) -> bool:
    return not isinstance(message, ResponseOf) and message.get("role") in SYSTEM_ROLES


def _text_of(message: Any) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    texts = (each.get("text") for each in parts if isinstance(each, dict))
    return "".join(each for each in texts if isinstance(each, str))


def _json_text(text: str) -> bytes:
    """Return a text inside a JSON string."""
    return msgspec.json.encode(text)[1:-1]
