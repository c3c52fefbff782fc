"""Networks that draft: what is trained, and the oracle of what runs natively."""
