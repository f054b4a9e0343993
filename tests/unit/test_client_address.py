"""Which address a request counts as, behind proxies that are trusted and ones that are not."""

from __future__ import annotations

import pytest

from maniflex._client_address import TrustedProxies, caller_network, plain_address, trust_problem

NOBODY = TrustedProxies()


def test_a_header_says_nothing_when_no_proxy_is_trusted() -> None:
    assert NOBODY.client("192.0.2.9", ["1.1.1.1"]) == "192.0.2.9"
    assert NOBODY.scheme("http", "192.0.2.9", ["1.1.1.1"], "https") == "http"


@pytest.mark.parametrize(
    ("trust", "headers", "client"),
    [
        (1, ["6.6.6.6, 192.0.2.7"], "192.0.2.7"),  # the client's own entry stands to the left
        (1, ["192.0.2.7"], "192.0.2.7"),
        (1, [], "10.0.0.1"),
        (1, ["192.0.2.7, unknown"], "10.0.0.1"),  # what the proxy says is no address
        (2, ["6.6.6.6, 192.0.2.7, 10.0.0.2"], "192.0.2.7"),
        (2, ["192.0.2.7"], "192.0.2.7"),
        (2, ["6.6.6.6", "192.0.2.7", "10.0.0.2"], "192.0.2.7"),  # the header sent several times
        (["10.0.0.0/8"], ["6.6.6.6, 192.0.2.7, 10.3.0.9"], "192.0.2.7"),
        (["10.0.0.0/8"], ["10.0.0.7, 10.3.0.9"], "10.0.0.7"),
        (["172.16.0.0/12"], ["6.6.6.6"], "10.0.0.1"),  # the peer itself is not trusted
        (1, ["[2001:db8::7]:4711"], "2001:db8::7"),
        (1, ["192.0.2.7:4711"], "192.0.2.7"),
        (1, ["::ffff:192.0.2.7"], "192.0.2.7"),
        (1, ["fe80::1%eth0"], "fe80::1"),
    ],
)
def test_entries_count_from_the_right(trust: int | list[str], headers: list[str], client: str) -> None:
    assert TrustedProxies(trust).client("10.0.0.1", headers) == client


@pytest.mark.parametrize(
    ("trust", "proto", "scheme"),
    [
        (1, "https", "https"),
        (1, "https, http", "http"),
        (2, "https, http", "https"),
        (1, "HTTPS", "https"),
        (1, "gopher", "http"),
        (1, "", "http"),
        (["172.16.0.0/12"], "https", "http"),
    ],
)
def test_the_scheme_is_believed_like_the_address(trust: int | list[str], proto: str, scheme: str) -> None:
    assert TrustedProxies(trust).scheme("http", "10.0.0.1", ["192.0.2.7"], proto) == scheme


def test_a_household_is_one_caller() -> None:
    assert caller_network("2001:db8:1:2:3::4") == caller_network("2001:db8:1:2:ffff::9")
    assert caller_network("192.0.2.7") == "192.0.2.7"


@pytest.mark.parametrize("text", ["", "unknown", "_hidden", "1.2.3", "1.2.3.4.5", "host.example"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert plain_address(text) is None


@pytest.mark.parametrize("trust", [-1, 21, True, "10.0.0.0/8", ("10.0.0.0/33",), ("proxy",), 1.5, None])
def test_a_trust_that_means_nothing_is_refused(trust: object) -> None:
    assert trust_problem(trust)
