"""What must hold in a history, table by table. ``fluss.testing.history_checker`` puts it together."""
