"""Parses one response: from the raw bytes of its fragments to times, counts and errors.

Between fragments an unfinished response only stores its parsers' incomplete input, four bytes per
content chunk, and its text if tokens are counted, so that an open connection stays cheap.

The following errors are detected, in this order:

- STATUS: a redirect (300 to 399), which is not followed. The worker itself reports 400 and above;
  the message is taken from the body.
- CONTENT_TYPE: not a type of the endpoint, or compressed; SERVER if the body is an error object. A
  response without a type is parsed anyway.
- PROTOCOL: broken framing. MALFORMED: an event or body that is not the endpoint's JSON.
  SERVER: an error object, or an event of type `error`. ABORTED: a finish reason such as `abort`.
  TOO_LARGE: an event or body that does not end, or that exceeds the memory of all responses. The
  first of these ends the parsing.
  An exception while a response is parsed or its text is counted also makes one MALFORMED response,
  and never ends the record processor.
- DISCONNECTED: a stream that ended properly, but without `[DONE]` and without a finish reason of
  each choice: proxies turn a broken backend into exactly this. A user-defined API may have
  neither.
- EMPTY: a complete response without any content, unless its first token ended it.

Errors of the content precede the end of the response, so they take precedence over a timeout or a
disconnect reported by the worker. A cancelled or abandoned request keeps its outcome.

Two questions are decided at the end of a response, from the counts that the server reports:

- Were the reasoning tokens streamed? OpenAI counts them but sends none of them, others send a
  summary. They are hidden if the received reasoning has less than one byte per token, or less than
  `SUMMARY_BYTES` per token and fewer than half as many events.
- Was a delta with an empty text a token? vLLM sends one for a token without text, such as a special
  token; other servers begin a message with it. If the reported tokens equal the number of deltas,
  each delta was a token.
"""

from array import array
from collections.abc import Mapping
from itertools import accumulate, pairwise
from typing import Final

from aiperf_svc.core.endpoints.base import Delta, Drafts, MalformedResponse, Part, parse_odd
from aiperf_svc.core.responses.error_bodies import MESSAGE_CHARACTERS, explain, kind_of, said_under
from aiperf_svc.core.responses.events import ENDED, ResponseEvents
from aiperf_svc.core.responses.fast_events import AFTER_EVENT, take_tokens
from aiperf_svc.core.responses.http1 import ChunkedBody, ProtocolViolation
from aiperf_svc.core.responses.read_times import ReadTimes
from aiperf_svc.core.responses.response_format import (
    BODY,
    ERROR_BODY,
    NO_HEAD,
    STREAM,
    ResponseFormat,
)
from aiperf_svc.core.responses.sse import MAX_EVENT_BYTES, EventTooLarge
from aiperf_svc.core.responses.text import is_repeated, utf8_size
from aiperf_svc.domain.finish_reasons import (
    ENDS_WITHOUT_CONTENT,
    FAILURES,
    FinishReason,
    finish_reason_of,
)
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import CONTRADICTORY_TOKENS, Framing

MAX_BODY_BYTES: Final = MAX_EVENT_BYTES
"""Maximum size of a body that is one JSON document."""
TEXT_BYTES: Final = 64
"""Memory of each token's text besides its characters."""
SUMMARY_BYTES: Final = 2
"""Bytes per token below which a text does not contain the reported tokens, unless there is an event
for each. Tokenizers yield three to five bytes per token in all languages they are made for."""
THINKING: Final = ("<think>", "<mm:think>")
"""Markers of reasoning at the beginning of a content."""
SHORT_REASONING: Final = 16
"""Maximum reasoning tokens that are exempt from this rule: a few short words, or only markers."""
SILENT_TOKENS: Final = 2
"""Maximum tokens of a stream without a delta, if all others had one each: the end of the text, or a
token that completes no character."""
ERROR_BODY_BYTES: Final = 16_384
"""Maximum bytes stored of a body that is only parsed for its error message."""

_MAX_UINT32: Final = 2**32 - 1
_COMPLETED, _ERRORED = int(Outcome.COMPLETED), int(Outcome.ERRORED)
_STATUS = int(ErrorKind.STATUS)
_CUT = (int(Outcome.CANCELLED), int(Outcome.ABANDONED))
"""Outcomes of requests that our side ended, whatever had arrived."""


class ResponseReader:
    _mode = NO_HEAD
    _events: ResponseEvents | None = None
    _chunks: ChunkedBody | None = None
    """Chunks of a body that is not a stream of events."""
    _body: bytearray | None = None
    _is_ended = False
    """True when `[DONE]` has arrived or every choice has ended."""
    _finished = 0
    """Choices that have ended, one bit each."""
    _finish_word = ""
    _content_type = _content_coding = ""
    _plain: Mapping[bytes, str] | None = None
    """Cached events of the same kind as the previous token; None before the first token."""
    _plain_texts: list[str] | None = None
    """Texts of these events, if texts are kept."""
    _choices: dict[int, tuple[list[str], list[str]]] | None = None
    """Texts and reasoning of each choice, if there are several and texts are kept."""

    first_token_wall_ns = 0
    gaps_ns: "array[int] | None" = None
    """Gaps between events with content in a stream: uint32, or int64 after a gap that was negative
    or longer than 4.29 s. None for a single event."""
    first_output_wall_ns = 0
    last_token_wall_ns = 0
    text_bytes = 0
    """Size of the output without reasoning, in UTF-8; sounds in the form they were sent."""
    reasoning_bytes = 0
    """Size of the reasoning, without the summary as marked by the API."""
    _first_content = ""
    """Content of the first event with output."""
    _reasoning_events = -1
    """Number of events before the first output; -1 until it arrives."""
    _blanks: "array[int] | None" = None
    """For each delta with an empty text: the number of tokens before it, and its time."""
    _opening_wall_ns = 0
    """Time of the delta that begins the message with its role."""
    _blank_uncertainties_ns = (0, 0)
    """Uncertainties of the first and the last of these times."""
    blank_tokens = 0
    """Number of these deltas that were tokens."""
    blank_lead_us = 0
    """Time from the first of these deltas to the first token, if the delta may have been a
    token."""
    ttft_uncertainty_ns = 0
    last_uncertainty_ns = 0
    usage_prompt_tokens = -1
    usage_completion_tokens = -1
    usage_reasoning_tokens = -1
    usage_cached_tokens = -1
    """CONTRADICTORY_TOKENS if the prompt's counts were reported twice with different values."""
    usage_cache_write_tokens = -1
    drafts = Drafts()
    finish_reason = int(FinishReason.NONE)
    outcome = _COMPLETED
    error = 0
    message = ""

    # Used by the assembler, which sums the fields that are not in the bytes.
    next_part = 0
    bytes_in = 0
    read_count = 0
    receive_lag_ns = 0

    def __init__(self, format: ResponseFormat, write_wall_ns: int) -> None:
        self._format = format
        self._last_choice = format.last_choice
        self._stamp = write_wall_ns
        """Timestamp of the last read. Later events cannot be earlier."""
        if format.keeps_text:
            self.text: list[str] = []
            self.reasoning: list[str] = []
            if format.last_choice:
                self._choices = {}

    @property
    def held_bytes(self) -> int:
        """Approximate memory of this unfinished response."""
        gaps = self.gaps_ns
        held = (gaps.itemsize * len(gaps) if gaps else 0) + len(self._body or b"")
        held += 8 * len(self._blanks or ())
        if self._events is not None:
            held += self._events.held_bytes
        if self._format.keeps_text:
            kept = [(self.text, self.reasoning), *(self._choices or {}).values()]
            for part in (part for pair in kept for part in pair):
                held += sum(map(len, part)) + TEXT_BYTES * len(part)
        return held

    @property
    def texts(self) -> list[str]:
        """Text of each choice, if texts are kept."""
        if self._choices is None:
            if self._format.may_repeat and is_repeated(self.text):
                return [self.text[-1]]
            return ["".join(self.text)]
        return ["".join(text) for text, _ in self._choices.values()]

    @property
    def reasonings(self) -> list[str]:
        """Reasoning of each choice, if texts are kept."""
        if self._choices is None:
            return ["".join(self.reasoning)]
        return ["".join(reasoning) for _, reasoning in self._choices.values()]

    @property
    def token_events(self) -> int:
        """Number of events of a stream with a token."""
        return len(self.gaps_ns) + 1 if self.gaps_ns else int(self.first_token_wall_ns > 0)

    @property
    def hidden_tokens(self) -> int:
        """Reasoning tokens that the server counts but has not streamed."""
        stated, total = self.usage_reasoning_tokens, self.usage_completion_tokens
        size = self.reasoning_bytes
        if total < stated or (stated <= size and not self._is_summarised(stated, size)):
            return 0
        # Reasoning may be part of the content, which then exceeds the other tokens.
        begins_with_thinking = self._first_content.lstrip().startswith(THINKING)
        is_inline = begins_with_thinking or self.token_events > total - stated
        return 0 if is_inline and self.text_bytes >= total else stated

    def _is_summarised(self, stated: int, size: int) -> bool:
        """Return whether reasoning of this size is too short for the reported tokens, with too few
        events for them."""
        is_long = size >= SUMMARY_BYTES * (stated - SHORT_REASONING)
        if is_long or not self.first_token_wall_ns:
            return False
        events = self._reasoning_events
        return 2 * (self.token_events if events < 0 else events) < stated

    def give_up(self, message: str) -> None:
        """Stop parsing and drop the stored data."""
        if not self.error:
            self._fail(ErrorKind.TOO_LARGE, message)
        self._events = self._body = self.gaps_ns = self._blanks = None
        if self._format.keeps_text:
            self.text, self.reasoning = [], []
            self._choices = None if self._choices is None else {}

    def take_head(self, raw: bytes, framing: int) -> None:
        """Parse status line and headers of the response, including preceding interim ones;
        `framing` is the worker's result."""
        try:
            head, self._mode = self._format.take_heads(raw)
        except ProtocolViolation as violation:
            self._fail(ErrorKind.PROTOCOL, str(violation))
            return
        except Exception as error:
            self._fail_unread(error)
            return
        self._content_type, self._content_coding = head.content_type, head.content_coding
        if self._mode == STREAM:
            self._events = ResponseEvents(self._format.memo, framing)
        elif framing == Framing.CHUNKED:
            self._chunks = ChunkedBody()

    def take(
        self, data: bytes, at: int, stop: int, reads: ReadTimes, first: int, count: int
    ) -> None:
        """Parse the body bytes `data[at:stop]`, still in their framing.

        They arrived in `count` reads starting with `first`, which may begin before `at`.
        """
        if self._mode != NO_HEAD and not self.error:
            try:
                if self._events is not None:
                    self._handle_events(self._events, data, at, stop, reads, first)
                else:
                    chunks = self._chunks
                    pieces = ((at, stop),) if chunks is None else chunks.feed(data, at, stop)
                    for begin, end in pieces:
                        self._handle_body(data[begin:end])
            except ProtocolViolation as violation:
                self._fail(ErrorKind.PROTOCOL, str(violation))
            except EventTooLarge as reason:
                self.give_up(str(reason))
            except Exception as error:
                self._fail_unread(error)
        if count:
            self._stamp = reads.stamps[first + count - 1]
            self.read_count += count

    def _handle_events(
        self, events: ResponseEvents, data: bytes, at: int, stop: int, reads: ReadTimes, first: int
    ) -> None:
        # The reads of the last token, and of the last delta with an empty text.
        read, blank_read, token_end = first, first, 0
        try:
            while at < stop and not self.error:
                if self._plain is not None and events.between:
                    at, read, gaps, size = take_tokens(
                        data, at, stop, events.between, self._plain, reads.ends, reads.stamps,
                        read, self.last_token_wall_ns, self._plain_texts,
                    )  # fmt: skip
                    if gaps:
                        self._keep_gaps(gaps)
                        if self.first_output_wall_ns:
                            self.text_bytes += size
                        else:
                            self.reasoning_bytes += size
                        self.last_token_wall_ns = reads.stamps[read]
                        token_end = at - AFTER_EVENT
                        if at == stop:
                            # A fragment ends with a read, so nothing follows the event in it.
                            self.last_uncertainty_ns = token_end = 0
                            break
                found, at = events.feed(data, at, stop)
                for delta, end in found:
                    if delta.choice > self._last_choice:
                        self._handle_choice(delta.choice)
                    if delta.content or delta.reasoning or delta.tool_calls or delta.items:
                        while reads.ends[read] < end:
                            read += 1
                        self._handle_token(delta, data, end, reads, read, first)
                        token_end = end
                    elif delta.is_blank:
                        blank_read = max(blank_read, read)
                        while reads.ends[blank_read] < end:
                            blank_read += 1
                        if not delta.names_role:
                            uncertainty = self._uncertainty(data, end, reads, blank_read, first)
                            self._handle_blank(reads.stamps[blank_read], uncertainty)
                        elif not (self._opening_wall_ns or self.first_token_wall_ns):
                            self._opening_wall_ns = reads.stamps[blank_read]
                        elif not self._last_choice:
                            # Each delta has a role, so the first one is not special.
                            uncertainty = self._uncertainty(data, end, reads, blank_read, first)
                            if self._blanks is None and self._opening_wall_ns:
                                self._handle_blank(self._opening_wall_ns, uncertainty)
                            self._handle_blank(reads.stamps[blank_read], uncertainty)
                    if delta.error:
                        self._fail(ErrorKind.SERVER, delta.error)
                        break
                    if delta.finish_reason:
                        self._handle_finish(delta)
                    if delta.completion_tokens >= 0 or delta.prompt_tokens >= 0:
                        self._handle_usage(delta)
                if events.failure is not None and not self.error:
                    self._fail(*events.failure)
        finally:
            if token_end:
                self.last_uncertainty_ns = self._uncertainty(data, token_end, reads, read, first)

    def _handle_token(
        self, delta: Delta, data: bytes, end: int, reads: ReadTimes, read: int, first: int
    ) -> None:
        stamp, keeps_text = reads.stamps[read], self._format.keeps_text
        if self.first_token_wall_ns:
            self._keep_gap(stamp - self.last_token_wall_ns)
        else:
            self.first_token_wall_ns = stamp
            self.ttft_uncertainty_ns = self._uncertainty(data, end, reads, read, first)
        self.last_token_wall_ns = stamp
        self.text_bytes += utf8_size(delta.content)
        if delta.reasoning or delta.tool_calls or delta.items:
            self._add_other_sizes(delta)
        is_first_output = not self.first_output_wall_ns and bool(
            delta.content or delta.tool_calls or delta.items
        )
        if is_first_output:
            self.first_output_wall_ns = stamp
            self._reasoning_events = self.token_events - 1
            self._first_content = delta.content
        # From here on, most tokens only add their times and texts. Texts of several choices are
        # kept separately, which requires their individual events.
        if self._choices is None and (is_first_output or not self.first_output_wall_ns):
            content, reasoning = self._format.memo.plain(self._last_choice)
            if is_first_output:
                self._plain = content
                self._plain_texts = self.text if keeps_text else None
            else:
                self._plain = reasoning
                self._plain_texts = self.reasoning if keeps_text else None
        if keeps_text:
            self._keep_text(delta)

    def _add_other_sizes(self, delta: Delta) -> None:
        self.text_bytes += utf8_size(delta.tool_calls) + delta.item_bytes
        if not delta.is_summary:
            self.reasoning_bytes += utf8_size(delta.reasoning)

    def _handle_blank(self, stamp: int, uncertainty: int) -> None:
        if self._blanks is None:
            self._blanks, self._blank_uncertainties_ns = array("q"), (uncertainty, uncertainty)
        self._blanks.extend((self.token_events, stamp))
        self._blank_uncertainties_ns = self._blank_uncertainties_ns[0], uncertainty

    def _handle_choice(self, choice: int) -> None:
        """Record that the response has more choices than known, so it has not ended yet."""
        self._last_choice = choice
        self._is_ended = False
        if self._format.keeps_text:
            if self._choices is None:
                self._choices = {0: (self.text, self.reasoning)}
            self._plain = None
        elif self._plain is not None:
            content, reasoning = self._format.memo.plain(choice)
            self._plain = content if self.first_output_wall_ns else reasoning

    def _handle_finish(self, delta: Delta) -> None:
        if delta is ENDED:
            self._is_ended = True
            return
        self._finished |= delta.finished
        if self._finished == (2 << self._last_choice) - 1:
            self._is_ended = True
        reason = finish_reason_of(delta.finish_reason)
        if reason >= self.finish_reason:
            self.finish_reason, self._finish_word = int(reason), delta.finish_reason
        if reason in FAILURES:
            text = f"the server ended the response with finish reason {delta.finish_reason!r}"
            self._fail(ErrorKind.ABORTED, text)

    def _keep_gap(self, gap_ns: int) -> None:
        if self.gaps_ns is None:
            self.gaps_ns = array("I")
        try:
            self.gaps_ns.append(gap_ns)
        except OverflowError:
            self.gaps_ns = array("q", (*self.gaps_ns, gap_ns))

    def _keep_gaps(self, gaps_ns: bytes) -> None:
        """Add gaps in the format of `take_tokens`."""
        own = self.gaps_ns
        if own is None:
            self.gaps_ns = array("I", gaps_ns)
        elif own.typecode == "I":
            own.frombytes(gaps_ns)
        else:
            own.extend(memoryview(gaps_ns).cast("I"))

    def _uncertainty(self, data: bytes, end: int, reads: ReadTimes, read: int, first: int) -> int:
        before = reads.stamps[read - 1] if read > first else self._stamp
        return reads.uncertainty_ns(data, end, read, before)

    def _handle_body(self, part: bytes) -> None:
        if self._body is None:
            self._body = bytearray(part)
        elif self._mode == BODY or len(self._body) < ERROR_BODY_BYTES:
            self._body += part
            if len(self._body) > MAX_BODY_BYTES:
                self.give_up(f"a body of over {MAX_BODY_BYTES // 2**20} MiB")

    def _handle_usage(self, delta: Delta) -> None:
        """Handle a usage object. Some servers send all or parts of it with every event; the last
        value of each count is used. Zero prompt tokens are ignored: gateways begin a message with
        zeros before they know the counts, or without ever reporting them."""
        if delta.prompt_tokens > 0:
            self._handle_prompt(delta)
        if delta.completion_tokens >= 0:
            self.usage_completion_tokens = delta.completion_tokens
        if delta.drafts is not None:
            self.drafts = delta.drafts
        if delta.reasoning_tokens >= 0:
            self.usage_reasoning_tokens = delta.reasoning_tokens

    def _handle_prompt(self, delta: Delta) -> None:
        """Record the counts of the prompt. Anthropic's last usage may omit the cached ones."""
        cached, prompt = self.usage_cached_tokens, self.usage_prompt_tokens
        if cached >= 0 and delta.cached_tokens < 0:
            return
        self.usage_prompt_tokens = delta.prompt_tokens
        if cached == CONTRADICTORY_TOKENS:
            return
        is_other = prompt > 0 and prompt != delta.prompt_tokens
        is_other |= cached > 0 and cached != delta.cached_tokens
        self.usage_cached_tokens = CONTRADICTORY_TOKENS if is_other else delta.cached_tokens
        self.usage_cache_write_tokens = delta.cache_write_tokens

    def _keep_text(self, delta: Delta) -> None:
        if delta.parts and self._choices is None:
            self._choices = {}
        if self._choices is not None:
            text = delta.content + delta.tool_calls
            for part in delta.parts or (Part(delta.choice, text, delta.reasoning),):
                own = self._choices.setdefault(part.choice, ([], []))
                own[0].append(part.text)
                own[1].append(part.reasoning)
            return
        if delta.content or delta.tool_calls:
            self.text.append(delta.content + delta.tool_calls)
        if delta.reasoning:
            self.reasoning.append(delta.reasoning)

    def _fail_unread(self, error: Exception) -> None:
        """Record an unexpected exception, so that all other responses continue."""
        self.give_up("")
        name = type(error).__name__
        self._fail(ErrorKind.MALFORMED, f"the response could not be read: {name}: {error}")

    def _fail(self, kind: ErrorKind, message: str) -> None:
        self.error = int(kind)
        self.message = message

    # --- the end ---------------------------------------------------------------------------------

    def finish(self, outcome: int, error: int, message: str, status: int) -> None:
        """Record how the worker ended the request; sets `outcome`, `error`, `message`."""
        try:
            if self._blanks is not None and self.first_token_wall_ns:
                self._judge_blanks(self._blanks)
            is_good = outcome == _COMPLETED and not self.error
            if is_good and self._is_ended and self.first_token_wall_ns:
                return  # A good stream.
            if outcome in _CUT:
                self.outcome, self.error, self.message = outcome, 0, ""
                return
            if outcome == _COMPLETED:
                if not self.error:
                    self._check_whole(status)
            elif error == _STATUS:
                body = bytes(self._body or b"")
                self.message = said_under(status, body, content_coding=self._content_coding)
                self.error = error
            elif not self.error:
                self.error, self.message = error, message
        except Exception as reason:
            self._fail_unread(reason)
        if self.error:
            self.outcome = _ERRORED
            self.error = int(kind_of(ErrorKind(self.error), self.message))
            self.message = one_line(self.message, limit=MESSAGE_CHARACTERS)

    def fail_counting(self, error: Exception) -> None:
        """Record that a tokenizer failed for the text of this finished response. Unless it was cut,
        it becomes an error, like an unreadable response."""
        if self.outcome == _COMPLETED:
            self.outcome = _ERRORED
            name = type(error).__name__
            text = f"its tokens could not be counted: {name}: {error}"
            self._fail(ErrorKind.MALFORMED, one_line(text, limit=MESSAGE_CHARACTERS))

    def _judge_blanks(self, blanks: "array[int]") -> None:
        """Decide whether the deltas with an empty text were tokens."""
        positions, stamps = blanks[::2].tolist(), blanks[1::2].tolist()
        events = self.token_events + len(stamps)
        stated = self.usage_completion_tokens - self.hidden_tokens
        if events <= stated <= events + SILENT_TOKENS:
            self._insert_tokens(positions, stamps)
        elif not positions[0] and (stated < 0 or stated > events):
            lead_us = (self.first_token_wall_ns - stamps[0]) // 1_000
            self.blank_lead_us = min(max(0, lead_us), _MAX_UINT32)

    def _insert_tokens(self, positions: list[int], stamps: list[int]) -> None:
        """Add tokens with these times, each after a given number of others."""
        known = list(accumulate(self.gaps_ns or (), initial=self.first_token_wall_ns))
        times: list[int] = []
        taken = 0
        for position, stamp in zip(positions, stamps, strict=True):
            times += [*known[taken:position], stamp]
            taken = position
        times += known[taken:]
        before, after = self._blank_uncertainties_ns
        if not positions[0]:
            if self.first_output_wall_ns == self.first_token_wall_ns:
                self.first_output_wall_ns = times[0]
            self.first_token_wall_ns, self.ttft_uncertainty_ns = times[0], before
        if positions[-1] == len(known):
            self.last_token_wall_ns, self.last_uncertainty_ns = times[-1], after
        self.gaps_ns, self.blank_tokens = None, len(stamps)
        for earlier, later in pairwise(times):
            self._keep_gap(later - earlier)

    def _check_whole(self, status: int) -> None:
        if self._mode == ERROR_BODY:
            kind, text = explain(
                status,
                bytes(self._body or b""),
                content_type=self._content_type,
                content_coding=self._content_coding,
                expected=self._format.content_types,
            )
            self._fail(kind, text)
        elif self._mode == STREAM:
            assert self._events is not None
            is_whole = (
                self._is_ended or self._events.is_done_unfinished or not self._format.has_end_mark
            )
            if not is_whole and self.first_token_wall_ns:
                text = "the stream ended without [DONE] or a finish reason"
                self._fail(ErrorKind.DISCONNECTED, text)
            elif not self.first_token_wall_ns and not (is_whole and self._ended_at_once()):
                self._fail_empty("no event of the stream has content")
        elif self._mode == BODY:
            self._parse_body()
        else:
            self._fail(ErrorKind.PROTOCOL, "a response without a head")

    def _parse_body(self) -> None:
        if not self._body:
            self._fail(ErrorKind.EMPTY, "the body is empty")
            return
        try:
            delta = parse_odd(self._format.parse_body, bytes(self._body))
        except MalformedResponse as error:
            self._fail(ErrorKind.MALFORMED, str(error))
            return
        self._handle_usage(delta)
        if delta.error:
            self._fail(ErrorKind.SERVER, delta.error)
        elif delta.finish_reason:
            self._handle_finish(delta)
        if self.error:
            return
        if not delta.has_output and not self._ended_at_once():
            self._fail_empty("the response has no content")
        else:
            self.last_token_wall_ns = self._stamp
            self.text_bytes += utf8_size(delta.content)
            self._add_other_sizes(delta)
            self._first_content = delta.content
            if self._format.keeps_text:
                self._keep_text(delta)

    def _ended_at_once(self) -> bool:
        """Return whether a response without content is complete. The model may end it with its
        first token, which has no text, or after hidden reasoning."""
        shown = self.usage_completion_tokens - max(self.usage_reasoning_tokens, 0)
        if self.finish_reason not in ENDS_WITHOUT_CONTENT or shown > 1:
            return False
        self.finish_reason = int(FinishReason.NO_CONTENT)
        return True

    def _fail_empty(self, text: str) -> None:
        suffix = f", finish reason {self._finish_word!r}" if self._finish_word else ""
        self._fail(ErrorKind.EMPTY, text + suffix)
