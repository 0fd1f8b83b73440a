"""The log as a node that speaks JSON lines: one message a line in, one reply a line out.

    lines     bytes as they come          -> lines, none longer than a bound
    messages  a line                      -> a checked request; a reply -> a line
    node      requests in turn            -> replies
    logs      topics and keys as strings  -> logs in a data folder
    state     what the node keeps beside its logs
    refusals  any error                   -> an error reply

Nothing here waits for input or starts a thread: `seglog node` does the reading and the writing.
"""
