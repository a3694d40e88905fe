"""The order of a job's lines: neighbours come together, and no line is lost or doubled."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from runner.domain.sharding import PrefixKeys, shards_of

PROMPTS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"x", b"y"]), st.binary(max_size=4)
    ),
    max_size=60,
)


def order_of(prompts: list[bytes]) -> list[int]:
    keys = PrefixKeys()
    for prompt in prompts:
        keys.add(prompt)
    return keys.order().tolist()


def long_prompt(parts: tuple[bytes, bytes, bytes]) -> bytes:
    coarse, fine, rest = parts
    return coarse * 256 + fine * 768 + rest


@given(PROMPTS, st.integers(1, 7))
def test_each_line_is_in_exactly_one_shard(
    parts: list[tuple[bytes, bytes, bytes]], shard_lines: int
) -> None:
    keys = PrefixKeys()
    for each in parts:
        keys.add(long_prompt(each))
    shards = list(shards_of(keys.order(), shard_lines))
    assert sorted(idx for lines in shards for idx in lines) == list(range(len(parts)))
    assert all(len(lines) == shard_lines for lines in shards[:-1])


@given(PROMPTS)
def test_lines_that_share_a_beginning_are_neighbours(
    parts: list[tuple[bytes, bytes, bytes]],
) -> None:
    order = order_of([long_prompt(each) for each in parts])
    coarse = [parts[idx][0] for idx in order]
    if len(set(coarse)) > 0.9 * len(coarse):
        assert order == list(range(len(parts)))
        return
    groups = [key for key, _ in groupby(coarse)]
    assert len(groups) == len(set(groups))
    finer = [key for key, _ in groupby(parts[idx][:2] for idx in order)]
    assert len(finer) == len(set(finer))


@given(PROMPTS)
def test_lines_keep_their_order_inside_a_group(parts: list[tuple[bytes, bytes, bytes]]) -> None:
    prompts = [long_prompt(each) for each in parts]
    order = order_of(prompts)
    for prompt in set(prompts):
        places = [idx for idx in order if prompts[idx] == prompt]
        assert places == sorted(places)


def test_groups_keep_the_order_of_their_first_line() -> None:
    prompts = [letter * 300 for letter in (b"q", b"a", b"q", b"z", b"a", b"a", b"q")]
    assert order_of(prompts) == [0, 2, 6, 1, 4, 5, 3]


def test_where_nothing_is_shared_the_lines_keep_the_files_order() -> None:
    assert order_of([b"%d" % (n * 7919) for n in range(500)]) == list(range(500))


def test_no_lines_make_no_shards() -> None:
    assert order_of([]) == []
