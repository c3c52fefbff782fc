"""JSON schemas that others wrote: JSON-Schema-Test-Suite (`conformance.py`) and JSONSchemaBench (`bench.py`)."""
