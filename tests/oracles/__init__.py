"""What the native library computes, written down in Python for the tests: by the same names, to the last bit."""
