"""Device code, run inside a step; each file is one operation in the language of its device."""
