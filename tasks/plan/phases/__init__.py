"""What single phases are told, from the plan: packages and folders, the build, checks before a switch, questions."""
