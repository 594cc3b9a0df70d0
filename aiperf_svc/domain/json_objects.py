"""Objects of JSON and YAML whose keys others decide: an API, a server, a user.

What this program both writes and reads has a type of its own.
"""

from typing import Any

Json = dict[str, Any]
"""A JSON object of a foreign format, or a config that is not validated yet."""
Parameters = dict[str, Any]
"""Dotted config keys and their values as a user writes them; None: the key has its default."""
