"""Operating system services that every layer uses: clock, log, threads, files, start-up and shutdown."""
