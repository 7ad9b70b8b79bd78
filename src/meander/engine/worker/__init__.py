"""What runs in a Python process of an executor, one call for each worker, operator and attempt. Spark may not enter.

messages      what driver and workers send each other
task          one attempt: lock, catch up, operate, write, copy ahead, report
catch_up      what to release, apply, install and copy, and doing it
rows          rows as they come, bad ones set aside; rows as they leave
process       which executor this process serves, and everything loaded before its first task
"""
