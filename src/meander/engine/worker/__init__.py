"""What runs in a Python process of an executor, one call for each worker, operator and attempt. Spark may not enter.

messages      what driver and workers send each other
task          one attempt: lock, catch up, operate, write, copy ahead, report
update        what to release, apply, install and copy; catch_up does it
incoming      rows as they come, bad ones set aside; outgoing: rows as they leave
process       which executor this process serves; warm: everything loaded before the first task
"""
