"""Other people's tests of what they would find here."""
