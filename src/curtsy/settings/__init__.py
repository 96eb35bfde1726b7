"""Settings: policies built from files, environment, presets and arguments.

    settings = load()                      # files and environment
    settings = load(preset="broad", user_agent="examplebot/1.0 (+https://example.org/bot)")
    settings.policies.of("example.org").qps
    settings.origin("example.org", "qps")  # "config/domains.yaml:12"

Precedence, lowest first: built-in, preset, user file, project file, environment, argument. `curtsy.settings.live`
reloads changed files while the program runs. YAML is imported on first use.
"""

from curtsy.settings.general import AT_START, CacheMode, Preset, Settings, names_contact
from curtsy.settings.reading import load, load_limits, new_notices, working_directory

__all__ = [
    "AT_START", "CacheMode", "Preset", "Settings", "load", "load_limits", "names_contact", "new_notices",
    "working_directory",
]  # fmt: skip
