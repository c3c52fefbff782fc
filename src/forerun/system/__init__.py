"""What is asked of the system: processors, memory, files, processes, threads, signals. No torch at import."""
