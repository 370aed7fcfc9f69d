"""Clusters by command: servers and their files, what they do and may, profiles, jobs on Spark."""
