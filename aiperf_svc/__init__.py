"""An ephemeral benchmark stack as code: load measurement of AI inference services."""

__version__ = "0.1.0"
