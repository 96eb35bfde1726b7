"""Settings file that `curtsy config init` writes."""

TEMPLATE = """\
# Settings of curtsy. It reads this file when it is run in this directory, and again when the file changes.
# Every line that begins with "# " and a name shows a default: take the "# " away to change it.
# Check with: curtsy config check      See what holds for a host: curtsy config show --origin example.org

# Who we say we are, and whom robots.txt is asked for. Name a page or an address where you can be reached.
# user_agent: "MyBot/1.0 (+https://example.org/bot)"

# What everything starts from: gentle, broad (no global limit) or own (a site of yours: no pauses, no budget).
# preset: gentle

# Requests per second over all hosts together; none for no limit.
# global_qps: 0.8

# Where hosts are remembered: a file (sqlite:///state.sqlite), or a server for many machines (redis://host:6379/0).
# none is a file in your state directory, shared by all processes of this machine.
# store: none

# Where pages are kept, and how many bytes of them; none is your cache directory.
# cache_dir: none
# cache_size: 1073741824

# What holds for every host that has no entry below.
# default_policy:
#   qps: 0.8                      # requests per second to one host
#   pause_min: 1.5                # seconds between two requests to a host, at random between these two
#   pause_max: 5.5
#   concurrency: 1                # requests to a host at once
#   max_requests_per_day: 200     # 0 means unlimited
#   max_pages_per_day: 100
#   timezone: local               # where the day changes at midnight
#   timeout: 30                   # seconds for one request
#   max_retries: 3
#   respect_robots: true
#   robots_unreachable: allow     # what holds if robots.txt cannot be had; disallow is RFC 9309's strict reading
#   max_crawl_delay: 300          # seconds; a site that asks for a longer delay is left alone
#   breaker_failures: 3           # failures in a row after which a host is left alone
#   breaker_cooldown: 300         # seconds, at first
#   on_429: obey                  # obey a Retry-After; trip: always leave alone; retry: never

# Sites with limits of their own. An entry holds for its host and all hosts under it; what it leaves out is as above.
# allowlist:
#   - domain: wikipedia.org
#     domain_category: trusted
#     max_requests_per_day: 500
#     max_pages_per_day: 250

# Sites that are never asked.
# denylist:
#   - private.example.net
"""
