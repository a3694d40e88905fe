"""The contract's traps, tried on a live server through the official client: at which one it fails.

A trap is a place where some server in use does not do what OpenAI's client and its users rely on. A
trap is one function: it takes the ``Exam``, returns a sentence on what it saw, and raises ``Fault``
when that is not what the contract says.
"""
