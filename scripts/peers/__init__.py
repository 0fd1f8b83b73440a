"""The brokers that `scripts/bench peers` measures beside each other.

Reading order: `interface.py` (what a broker and a client must be able to do), one file a broker,
`systems.py` (the table of them), `workers.py` and `jobs.py` (client processes and what they do),
`rows.py` and `campaign.py` (what is measured, and when), `results.py` and `report.py`.
"""
