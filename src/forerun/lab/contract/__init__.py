"""What every drafter must hold, as checks that run."""
