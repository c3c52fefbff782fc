"""What networks that draft share: trees, files, learning while serving."""
