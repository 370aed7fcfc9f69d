"""What every command uses: the session of one call, its options and parameters, output, exit codes, profiles."""
