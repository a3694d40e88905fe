"""The only door to ``engine``: our own engine as a backend, and its benchmark."""

from runner.inference.local.backend import LocalBackend

__all__ = ["LocalBackend"]
