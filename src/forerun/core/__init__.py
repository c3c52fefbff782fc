"""The words every other package speaks: types, the token tree, options, errors. No torch at import."""
