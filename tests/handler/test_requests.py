"""What is a request, and what is refused with which words."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handler.errors import MalformedRequest, RequestError, TooManyNodes, UnknownNode
from handler.requests import encode_answer, encode_error, parse_request

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["node_id", "node_ids", "instances", "return"]), inner)
    ),
)


def test_one_node() -> None:
    request = parse_request(b'{"node_id": 42, "num_hops": 1, "return": ["label"]}', 10)
    assert request.is_single
    (query,) = request.queries
    assert (query.node_id, query.options.num_hops, query.options.returned) == (42, 1, ("label",))


def test_many_nodes_share_their_options() -> None:
    request = parse_request(b'{"node_ids": [1, "a"], "num_neighbors": 3}', 10)
    assert not request.is_single
    assert [(query.node_id, query.options.num_neighbors) for query in request.queries] == [(1, 3), ("a", 3)]


def test_instances_have_options_of_their_own() -> None:
    request = parse_request(b'{"instances": [{"node_id": 1, "num_hops": 1}, {"node_id": 2}]}', 10)
    assert [(query.node_id, query.options.num_hops) for query in request.queries] == [(1, 1), (2, None)]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "has no body"),
        (b"{", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[1]", "Expected `object`, got `array`"),
        (b"42", "Expected `object`, got `int`"),
        (b"null", "Expected `object`, got `null`"),
        (
            b"{}",
            "expected exactly one of `node_id`, `node_ids`, `node`, `instances` and `pairs`, but came none",
        ),
        (b'{"node_id": 1, "node_ids": [1]}', "but came `node_id` and `node_ids`"),
        (b'{"node_id": null}', "Expected `int | str`, got `null`"),
        (b'{"node_id": 1.5}', "Expected `int | str`, got `float`"),
        (b'{"node_id": true}', "Expected `int | str`, got `bool`"),
        (b'{"node_id": NaN}', "invalid character"),
        (b'{"node_id": 9223372036854775808}', "Expected `int` <= 9223372036854775807"),
        (b'{"node_id": "\\ud800"}', "cannot be read"),
        (b'{"node_id": 1, "colour": 2}', "unknown field `colour`"),
        (b'{"node_id": 1, "num_hops": 0}', "Expected `int` >= 1 - at `$.num_hops`"),
        (b'{"node_id": 1, "num_neighbors": "3"}', "Expected `int | null`, got `str` - at `$.num_neighbors`"),
        (b'{"node_id": 1, "return": ["poem"]}', "Invalid enum value 'poem' - at `$.return[0]`"),
        (b'{"node_id": 1, "max_staleness_ms": -1}', "Expected `float` >= 0.0 - at `$.max_staleness_ms`"),
        (b'{"node_id": 1, "as_of": "now"}', "got `str` - at `$.as_of`"),
        (b'{"node_ids": []}', "`node_ids` is empty"),
        (b'{"node_ids": 7}', "Expected `array`, got `int`"),
        (b'{"instances": []}', "`instances` is empty"),
        (b'{"instances": [], "num_hops": 1}', "unknown field `num_hops`"),
        (b'{"node_ids": ' + b"[" * 5000, "cannot be read"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(MalformedRequest) as caught:
        parse_request(body, 10)
    assert problem in caught.value.message


def test_too_many_nodes_are_refused_with_both_numbers() -> None:
    for body in (b'{"node_ids": [1, 2, 3]}', b'{"instances": [{"node_id": 1}, {}, {}]}'):
        with pytest.raises(TooManyNodes, match="3 nodes asked for, at most 2 are allowed"):
            parse_request(body, 2)


def test_a_bad_row_spoils_only_itself() -> None:
    request = parse_request(b'{"node_ids": [1, 2.5, null, "a", [3]]}', 10)
    assert [query.node_id for query in request.queries] == [1, None, None, "a", None]
    assert [query.error is None for query in request.queries] == [True, False, False, True, False]
    request = parse_request(b'{"instances": [{"node_id": 1}, {"node_id": {}}, 7, {"node_ids": [1]}]}', 10)
    assert [query.error is None for query in request.queries] == [True, False, False, False]


@given(_JSON | st.fixed_dictionaries({"node_ids": _JSON}) | st.fixed_dictionaries({"instances": _JSON}))
def test_no_json_does_anything_but_parse_or_be_refused(value: object) -> None:
    with suppress(RequestError):
        parse_request(json.dumps(value).encode(), 5)


@given(st.binary())
def test_no_bytes_do_anything_but_parse_or_be_refused(body: bytes) -> None:
    with suppress(RequestError):
        parse_request(body, 5)


def test_answers_are_json_with_short_numbers() -> None:
    response = encode_answer({"embedding": np.array([0.1, 2], dtype=np.float32)}, 100)
    assert (response.status, response.code, response.body) == (200, "ok", b'{"embedding":[0.1,2.0]}')


def test_an_answer_that_cannot_be_sent_is_refused() -> None:
    response = encode_answer({"embedding": [0.5] * 100}, 100)
    assert (response.status, response.code) == (413, "response_too_large")
    assert b"at most 100 can be sent" in response.body


def test_errors_say_their_code_and_message() -> None:
    response = encode_error(UnknownNode("é"))
    assert response.status == 404
    assert json.loads(response.body) == {
        "error": {"code": "unknown_node", "message": "the graph has no node 'é'"}
    }
