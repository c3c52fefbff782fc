"""What every other package uses: types, the token tree, options, errors. No torch at import."""
