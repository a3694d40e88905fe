"""Every error the engine raises or reports: a machine code and a sentence with a remedy."""


class EngineError(Exception):
    """Root of the engine's errors.

    Attributes:
        code: stable machine-readable kind.
        message: one sentence for a person, saying what to do.
    """

    code = "engine_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidParams(EngineError):
    """One field of a request or of the configuration is wrong; `param` names it."""

    code = "invalid_params"

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(EngineError):
    """The prompt can never fit: it passes the model's length or the whole KV pool."""

    code = "context_length_exceeded"


class InvalidLogits(EngineError):
    """The model produced NaN or infinite logits for this request."""

    code = "invalid_logits"


class InvalidGrammar(EngineError):
    """A schema, pattern or other grammar can't be enforced.

    `message` only says why, as the rest of a sentence that begins with what was asked for.
    """

    code = "invalid_grammar"


class GrammarFault(EngineError):
    """A request's grammar could not be followed to the end of its output."""

    code = "grammar_fault"


class UnsupportedModel(EngineError):
    """The model folder can't be served; the sentence says why and what to do."""

    code = "unsupported_model"


class NotPaged(EngineError):
    """The paged lane can't run the model; the sentence says why, and the padded lane may."""

    code = "not_paged"
