"""What is measured between GPUs, and how it is judged."""
