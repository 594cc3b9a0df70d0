"""Recognises names of secrets among headers, environment variables, flags and keys of request
bodies.

A name is split into words at punctuation and at changes of case, and judged by its last word:
`X-ApiToken` ends in a token, `max_tokens` and `tokenizer` do not.
"""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl

TARGET_KEY_ENV = "AIPERF_TARGET_API_KEY"
"""Environment variable in which workers and the caller of hooks find the target's API key, if it
comes from `--api-key` or a stack's Secret."""

PAGES_KEY_ENV = "AIPERF_PAGES_KEY"
"""Environment variable in which the records manager of a stack finds the key of pages."""

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRET_WORDS = _words(
    "auth authentication authorization bearer cookie cookies credential credentials jwt passcode "
    "passphrase passwd password passwords pwd secret secrets"
)
"""Words that make a name secret if they are its last word."""
_SECRET_ENDINGS = ("authorization", "passwd", "password", "passphrase", "secret")
"""Endings that make a name secret even without a separator before them, such as `pgpassword`."""
_SECRET_OWNERS = _words(
    "access account admin api auth client db function functions master private secret service "
    "session signing subscription user"
)
"""`apikey`, `api_keys`, `auth_tokens`, `db_pass`: words before a secret key, token or
pass."""
_HARMLESS_KEYS = _words(
    "affinity cache dedup foreign group hash idempotency index lookup object partition primary "
    "public routing row shard socket sort surrogate"
)
_HARMLESS_TOKENS = _words(
    "bos cls continuation end eos first image mask max min new next pad page per sep special start "
    "stop unk"
)
_SWITCHES = frozenset({"disable", "enable", "no", "require", "skip"})
"""First words of names of switches."""
_TRAILERS = frozenset({"header", "value"})
"""Last words that are ignored."""


def is_secret_name(name: str) -> bool:
    """Return whether the value under `name` is likely to be a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    while words and words[-1] in _TRAILERS:
        words.pop()
    if not words or words[0] in _SWITCHES:
        return False
    if words[-2:] == ["connection", "string"] or "jwt" in words:
        return True
    owner, last = words[-2] if len(words) > 1 else "", words[-1]
    if last in ("keys", "tokens", "pass"):
        return owner in _SECRET_OWNERS
    if last == "key":
        return owner not in _HARMLESS_KEYS
    if last.endswith("key"):
        return last.removesuffix("key") in _SECRET_OWNERS
    if last.endswith("token"):
        return (last.removesuffix("token") or owner) not in _HARMLESS_TOKENS
    return last in _SECRET_WORDS or last.endswith(_SECRET_ENDINGS)


def secret_paths(values: object, path: str) -> Iterator[str]:
    """Yield the keys below `path` whose text is likely to be a secret, except numbers and
    switches."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            own = f"{path}.{name}"
            if isinstance(value, str) and value and is_secret_name(str(name)):
                yield own
            yield from secret_paths(value, own)
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from secret_paths(value, f"{path}[{number}]")


def secrets_in_query(path: str, key: str) -> Iterator[str]:
    """Yield `key`, whose value is the URL path `path`, once for each likely secret in the path's
    query."""
    _, _, query = path.partition("?")
    return (key for name, _ in parse_qsl(query) if is_secret_name(name))
