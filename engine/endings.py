"""Why a request ends with its newest token: the one finish check of all paths."""

from collections.abc import Collection, Mapping

from engine.detokenizer import Detokenizer
from engine.outputs import FinishReason
from engine.request import Request
from engine.sampling_params import SamplingParams


class Endings:
    """What ends requests of one model."""

    def __init__(
        self,
        eos_token_ids: Collection[int],
        num_token_ids: int,
        max_model_len: int,
        detokenizers: Mapping[str, Detokenizer],
    ) -> None:
        """`num_token_ids` ids from 0 can be sampled; `detokenizers` has that of each request."""
        self._eos_token_ids = eos_token_ids
        self._num_token_ids = num_token_ids
        self._max_model_len = max_model_len
        self._detokenizers = detokenizers

    def reason(self, request: Request) -> FinishReason | None:
        """Why the newest token ends the request, or None; to be asked once for each token."""
        params = request.params
        token_id = request.token_ids[-1]
        may_stop = request.num_output_tokens >= params.min_tokens
        completes_stop = self._detokenizers[request.request_id].append(token_id, may_stop)
        is_complete = request.grammar is not None and request.grammar.is_complete
        if is_complete or self.is_end_token(params, token_id):
            return FinishReason.STOP
        if (
            request.num_output_tokens >= params.max_tokens
            or request.num_tokens >= self._max_model_len
        ):
            return FinishReason.LENGTH
        return FinishReason.STOP if completes_stop else None

    def end_token_ids(self, params: SamplingParams) -> list[int]:
        """Every token id that ends a request, of those that can be sampled."""
        eos = () if params.ignore_eos else self._eos_token_ids
        return sorted(i for i in {*eos, *params.stop_token_ids} if i < self._num_token_ids)

    def is_end_token(self, params: SamplingParams, token_id: int) -> bool:
        """Whether this token ends the request, whatever its text is."""
        is_eos = token_id in self._eos_token_ids and not params.ignore_eos
        return is_eos or token_id in params.stop_token_ids
