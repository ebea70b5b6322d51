"""The report of a host: its data, its page, its pictures."""
