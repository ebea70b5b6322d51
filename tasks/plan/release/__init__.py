"""What a release is made of, which one a host gets, and which it keeps."""
