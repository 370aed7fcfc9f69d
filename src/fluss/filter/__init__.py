"""Filters: the conditions of ``scan.filter``, from their text to the rows and partitions in which they hold."""
