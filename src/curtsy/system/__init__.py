"""The parts of the operating system that every layer uses: clock, threads, files, start-up and shutdown."""
