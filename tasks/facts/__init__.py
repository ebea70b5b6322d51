"""What is read from a host, one subject a file. Facts only read; tasks/plan parses what they bring."""
