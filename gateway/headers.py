"""The headers of the gateway itself, beside those of `handler.headers`.

Clients send `VERSION`, `PRIORITY` and `API_KEY`. `CLIENT`, `VERB` and `AFFINITY`, by which a balancer finds
the host, are set by the gateway for its own use, whatever clients send under these names. `DEGRADED` marks
answers that no model gave.
"""

VERSION = "x-model-version"
PRIORITY = "x-priority"
API_KEY = "x-api-key"
CLIENT = "x-hopserve-client"
VERB = "x-hopserve-verb"
AFFINITY = "x-hopserve-affinity"
ORIGINAL_PATH = "x-envoy-original-path"
DEGRADED = "x-hopserve-degraded"
# By which TorchServe sends a whole batch to another function of the handler.
DIVERTING = ("describe", "explain")
