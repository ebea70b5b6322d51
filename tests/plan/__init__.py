"""Tests of tasks/plan: no host, no pyinfra, no network."""
