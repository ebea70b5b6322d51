"""What phases share: the catalogue, templates, reports, refusals, the barrier between phases."""
