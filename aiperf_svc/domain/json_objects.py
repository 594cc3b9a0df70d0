"""Objects of JSON and YAML whose keys others decide: an API, a server, a user.

What this program both writes and reads has a type of its own.
"""

from typing import Any

Json = dict[str, Any]
"""An object of somebody else's format, or a config before its models check it."""
Parameters = dict[str, Any]
"""Dotted config keys and their values as a user writes them; None: the key has its default."""
