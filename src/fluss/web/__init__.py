"""HTTP for people and monitoring systems: the page, ``/metrics``, ``/health`` and ``/api``, on a thread of their own.

It sees a server through ``OperatorView`` and reads tables as a client does, as the user who looks.
"""
