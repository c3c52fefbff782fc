"""llama.cpp's tests of llama-server, run against `forerun serve`."""
