"""The settings of `seglog serve`: a broker's, and those of the gateway beside it under `http.`.

`seglog gateway` reads the same file, variables and flags, and uses only `http.`: so both can share
one file.
"""

from __future__ import annotations

from .gateway.settings import GatewaySettings
from .server.config import BrokerConfig


class ServeConfig(
    BrokerConfig,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename=lambda name: name.replace("_", "."),
):
    """A broker, and perhaps a gateway in the same process."""

    #: The HTTP gateway.
    http: GatewaySettings = GatewaySettings()
