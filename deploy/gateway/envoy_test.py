"""Looks at envoy.yaml as far as one can without Envoy: types written out, filters in order, names that lead somewhere."""

import sys

import yaml

with open(sys.argv[1]) as file:
    resources = yaml.safe_load(file)["static_resources"]
(listener,) = resources["listeners"]
(chain,) = listener["filter_chains"]
manager = chain["filters"][0]["typed_config"]
filters = [filter["name"].rsplit(".", 1)[1] for filter in manager["http_filters"]]
# Cheap refusals first; the router takes what is left.
assert filters == ["local_ratelimit", "jwt_authn", "buffer", "router"], filters
for filter in manager["http_filters"]:
    assert filter["typed_config"]["@type"].startswith("type.googleapis.com/envoy."), filter["name"]
clusters = {cluster["name"] for cluster in resources["clusters"]}
routes = manager["route_config"]["virtual_hosts"][0]["routes"]
assert all(route["route"]["cluster"] in clusters for route in routes if "route" in route)
assert routes[-1]["direct_response"]["status"] == 404, "what is not written is not passed on"
assert {"x-user-id", "x-forwarded-for", "cookie"} <= set(manager["route_config"]["request_headers_to_remove"])
