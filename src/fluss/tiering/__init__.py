"""Tiering: what a Fluss table has got since the last round becomes a snapshot of its lake table. Without Spark.

| module | what it is |
|---|---|
| ``round_plan`` | which records of which buckets a round brings to the lake, on which state of both; recovery |
| ``split_work`` | what a task does: reads its splits, writes data files; ``key_work`` for tables with a primary key |
| ``round_commit`` | one commit to the lake, then one to Fluss, in an order by which every record arrives exactly once |
| ``task_runners`` | where tasks run: here, or on executors |
| ``rounds`` | one round of one table, from the plan to the report |
| ``progress`` | what rounds have done, for people and for programs; ``tiering_metrics`` for monitoring |
| ``schedules`` | which table is next: what the coordinator hands out, or tables by name |
| ``compaction`` | small files and deleted rows of a lake table, rewritten |
| ``verification`` | a lake table compared with its Fluss table |
| ``upkeep`` | what is done after rounds or on demand: compaction, expiry, forgotten files |
| ``service`` | rounds of many tables, several at a time, with heartbeats |

A round has a driver, which plans and commits, and tasks, which move the rows. ``rounds.tier`` runs everything in this
process; ``fluss.spark.lake`` runs the tasks on executors, and rounds of many tables by the coordinator's schedule.
"""
