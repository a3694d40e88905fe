"""Lines of output and error files, as readers of all kinds take them."""

import json

from runner.domain.answers import error_body, refusal_line, success_line, unfinished_line


def test_a_line_is_one_also_for_readers_that_split_at_every_separator() -> None:
    odd = "a\u2028b\u2029c\x85d\x0ce\U0001f388"
    body = json.dumps({"text": odd}, ensure_ascii=False).encode()
    refusal = error_body(400, odd, "bad", None)
    success = success_line("x", odd, body)
    for line in (
        success,
        refusal_line("x", odd, 400, refusal),
        unfinished_line("x", odd, "batch_expired"),
    ):
        (text,) = line.decode().splitlines()
        assert json.loads(text)["custom_id"] == odd
    assert json.loads(success)["response"]["body"] == {"text": odd}
