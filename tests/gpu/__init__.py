"""What runs on a machine with GPUs: a model of real size without its weights, and a comparison of two services."""
