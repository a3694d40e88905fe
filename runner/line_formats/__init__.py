"""What the lines of files look like, as JSON schemas made of the types that read them."""
