"""What a user asks for, typed and checked: settings, the roles they describe."""
