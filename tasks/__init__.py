"""The phases of the deploy, one module each, in the order that deploy.py calls them."""
