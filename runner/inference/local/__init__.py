"""The only door to ``engine``: our own engine as a backend, its prompts, and its benchmark.

The package itself imports nothing: prompts need no torch.
"""
