"""The HTTP gateway: the log for those who cannot speak the protocol.

    settings              every limit, with its default
    problems              errors as problem JSON, and their HTTP status
    models, *_models      the typed bodies of requests and answers
    records               records as JSON, and back
    places                `from=`, `to=`: where to read
    backend               the broker: one shared Producer and Admin
    producing, reading    appending, and one long poll
    streams               NDJSON and server-sent events
    limits, figures       what a request may take; what /metrics shows of the gateway
    state, routes_*       what the paths share, and the paths
    page                  /docs, which needs nothing from the internet
    app                   all of it as an ASGI application
    connection, server    … and as a server in an event loop

It goes through the client library for everything: what it can do, a program with the library can.
Only `settings` can be imported without the extra `http`.
"""
