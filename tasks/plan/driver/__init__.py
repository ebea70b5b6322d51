"""The NVIDIA driver, pinned."""
