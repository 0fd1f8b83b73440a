"""The parts of the load generator (`scripts/loadgen`), in the order in which a run uses them.

workload      what to do, as checked options
sizes, events, records
              what is sent: JSON events of given sizes, keys, pools made before the load begins
stamps, checker
              records that can be told apart, and who looks whether all came as they were sent
pacing        when to send, and how late it was
producing, consuming
              the loops, with a worker process around them (worker)
histogram     latencies, merged over processes
broker        the broker's process: started, watched, killed where asked
conduct       one run from start to end: workers, broker, result
live          what is seen meanwhile
result, compare, charts, report
              what is left afterwards
"""
