"""The lake on Spark: rounds of tiering whose tasks run on executors."""
