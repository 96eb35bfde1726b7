"""`curtsy jobs`: named crawls, which can be resumed."""

from __future__ import annotations

import math
import re
import shlex
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click
import msgspec

from curtsy.cli import console
from curtsy.cli.command import JSON, YES, command, duration, group, job_name, known_jobs
from curtsy.cli.context import CommandContext, Exit
from curtsy.core.crawl_messages import limit_of, running_job
from curtsy.core.errors import CurtsyError, PolicyError, StoreError
from curtsy.core.masking import mask_url
from curtsy.core.time import span

if TYPE_CHECKING:
    from curtsy.core.crawl_record import CrawlRecord
    from curtsy.crawling.frontier.redis_jobs import Heartbeat, JobSummary
    from curtsy.crawling.jobs import Job

NARROW = 70
"""Width in columns below which the limit that ended a job is omitted."""

MOST_HOSTS = 10
"""Maximum number of a job's hosts shown."""

MOST_WORKERS, MOST_CREW = 20, 1000
"""Maximum number of a job's workers shown, and with --json: the latest ones."""

NOT_RECORDED = (
    "no page that the options choose is recorded. Pages of outputs that are stored with --durable are not recorded, "
    "nor are pages of a shared job without an output."
)
"""Why no page may be found to queue again."""

GLANCE = 1.0
"""Seconds for which the server may take to say that a job of this machine is not one of its jobs."""

STYLES = {"running": "green", "unfinished": "yellow", "done": "dim", "damaged": "red"}


@group(
    ("curtsy jobs ls", "All jobs of this machine, with their progress."),
    ("curtsy jobs show docs", "One job in full, and how to resume it."),
    ("curtsy jobs ls --store redis://10.0.0.5", "Also the jobs that machines share on a server."),
    ("curtsy jobs requeue docs --failed", "Fetch its failed URLs again at its next start."),
)
def jobs() -> None:
    """List, show or remove crawls that can be resumed.

    A crawl saves its queue and all seen URLs under the name of --job, or else of its first URL. After a stop or a kill,
    the same command resumes it. A job that you did not name is removed 30 days after its last run, and so are all but
    the latest hundred. With --store redis://… the jobs that many machines share are included.
    """


def _running(given: CommandContext) -> dict[str, CrawlRecord]:
    """Return the records of running crawls, by job, or by `job:worker` for a shared job.

    Returns an empty dict if the store cannot be read.
    """
    from curtsy.core.crawl_record import CrawlRecord, crawl_key
    from curtsy.stores import read_all

    prefix = crawl_key("")
    try:
        with closing(given.open_store()) as store:
            found = [(key.removeprefix(prefix), each) for key, each in read_all(store, prefix)]
    except CurtsyError:
        return {}
    return {key: each for key, each in found if isinstance(each, CrawlRecord) and each.is_running}


def _server(given: CommandContext) -> str:
    """Return the URL of a store that machines can share; empty for any other store."""
    from curtsy.crawling.start import SHARED

    store = given.settings().store or ""
    return store if store.startswith(SHARED) else ""


def _shared(given: CommandContext) -> dict[str, JobSummary]:
    """Return the jobs of a shared store by name; none for any other store."""
    if not (server := _server(given)):
        return {}
    import asyncio

    from curtsy.crawling.frontier.redis_jobs import jobs as shared_jobs

    return {each.name: each for each in asyncio.run(shared_jobs(server))}


def _is_begun(found: JobSummary) -> bool:
    """Return whether a shared job has work: a crawl that could not open its outputs leaves a job without."""
    from curtsy.crawling.jobs import SEEDS

    counts = found.counts
    has_urls = counts.queued or counts.leased or counts.done or counts.failed
    return bool(has_urls or found.trouble or found.workers or found.notes.get(SEEDS))


def _readable(found: JobSummary) -> Job:
    """Return the state of a shared job; a damaged one must not hide the others."""
    from curtsy.crawling.jobs import Job, shared

    trouble = found.trouble
    try:
        if not trouble:
            return shared(found)
    except StoreError as error:
        trouble = str(error)
    return Job(found.name, "", found.changed_at or 0.0, trouble=trouble)


def _fields(job: Job, running: dict[str, CrawlRecord], found: JobSummary | None = None) -> dict[str, Any]:
    """Return the JSON fields of a job; `found` is its entry in a shared store."""
    from curtsy.crawling.jobs import ENDED, WAITED_FOR

    counts: dict[str, Any] = dict.fromkeys(("pages", "queued", "failed", "skipped", "hosts"))
    changed_at, totals, record = job.changed_at, job.totals, running.get(job.name)
    if job.counts is not None:
        failed, skipped = sum(totals.failed.values()), sum(totals.skipped.values())
        left = job.counts.queued + job.counts.leased
        counts |= {
            "pages": totals.pages,
            "failed": failed,
            "skipped": skipped,
            "queued": left,
            "hosts": job.counts.hosts,
        }
    elif job.is_running and record is not None:
        counts |= {name: getattr(record, name) for name in ("queued", "failed", "skipped")}
        counts["pages"], changed_at = record.pages + record.cached, record.updated_at
    ended = "damaged" if job.counts is None else "unfinished" if counts["queued"] else "done"
    return {
        "name": job.name, "state": "running" if job.is_running else ended, "is_shared": found is not None,
        "workers": int(job.is_running) if found is None else found.workers, **counts, "changed_at": changed_at or None,
        "folder": job.folder or None, "ended": None if job.is_running else job.notes.get(ENDED) or None,
        "waited_for": None if job.is_running else job.notes.get(WAITED_FOR) or None,
    }  # fmt: skip


@command(("curtsy jobs ls", "All jobs, by name."), of=jobs)
@JSON
@click.pass_obj
def ls(given: CommandContext, is_json: bool) -> Exit:
    """List the jobs with their progress and the time of the last change.

    If the server does not answer, it lists those of this machine, and the exit code is 1.
    """
    from curtsy.crawling.jobs import jobs as local_jobs

    failure: CurtsyError | None = None
    shared_jobs: dict[str, JobSummary] = {}
    try:
        shared_jobs = _shared(given)
    except CurtsyError as error:
        failure = error
    running = _running(given) if failure is None else {}
    found = [_fields(each, running) for each in local_jobs()]
    found += [_fields(_readable(each), {}, each) for each in shared_jobs.values() if _is_begun(each)]
    if is_json:
        console.write_json(found)
    elif found:
        _show_all(found)
    elif failure is None:
        console.say("there are no jobs. curtsy crawl URL starts one.")
    if failure is None:
        return Exit.FINE
    console.say(f"{failure} The jobs of this server are not listed.")
    return Exit.CONFIGURATION if isinstance(failure, PolicyError) else Exit.ERROR


def _show_all(found: list[dict[str, Any]]) -> None:
    """Print a table of jobs."""
    terminal = console.out()
    figures = ("pages", "queued", "failed")
    titles = ["left" if name == "queued" else name for name in figures]
    table = console.fitted_table("job", "state", *titles, "changed", right=titles, least=("changed", "failed"))
    limited = " ({})" if terminal.width >= NARROW else ""
    for each in found:
        state = console.text((_state(each, limited), STYLES[each["state"]]))
        numbers = ["–" if each[name] is None else f"{each[name]:,}" for name in figures]
        table.add_row(console.plain(each["name"]), state, *numbers, _ago(each["changed_at"]) or "–")
    console.show(terminal, table)
    if any(each["state"] == "unfinished" for each in found):
        console.say("unfinished jobs can be resumed: curtsy jobs show NAME shows how.")


def _state(fields: dict[str, Any], limited: str) -> str:
    """Return the state of a job in words; `limited` formats the option that ended the last run of an unfinished one."""
    by = f" by {fields['workers']:,}" if fields["is_shared"] and fields["workers"] else ""
    limit = limit_of(fields["ended"] or "", fields["waited_for"] or "") if fields["state"] == "unfinished" else None
    return f"{fields['state']}{by}" + ("" if limit is None else limited.format(limit))


def _ago(second: float | None) -> str:
    return f"{span(max(0.0, time.time() - second))} ago" if second else ""


@command(
    ("curtsy jobs show docs", "Its start URLs, progress, skipped URLs with reasons, and how to resume it."),
    ("curtsy jobs show docs --json | jq -r .resume", "Only the command line that resumes it."),
    of=jobs,
)
@click.argument("name", metavar="NAME", type=job_name, shell_complete=known_jobs)
@JSON
@click.pass_obj
def show(given: CommandContext, name: str, is_json: bool) -> None:
    """Show one job: its start URLs, scope, totals, skipped URLs with reasons, and how to resume it.

    While it runs, also the hosts with the most pages. The counts of a shared job are those of all its workers. It lists
    these with their last heartbeats, also stopped ones, and those that were lost: they ended without signing off.
    """
    from curtsy.crawling.jobs import FRONTIER, folder_of, look, shared

    server, running = _server(given), {}
    is_here = (folder_of(name) / FRONTIER).is_file()
    try:
        found = _shared_one(server, name, GLANCE if is_here else None) if server else None
        running = _running(given)
    except StoreError as error:
        if not is_here:
            raise
        found = None
        console.say(f"{error} This is the job of this machine.")
    job = look(folder_of(name), server) if found is None else shared(found)
    records = {key: each for key, each in running.items() if key == job.name or key.startswith(f"{job.name}:")}
    if job.is_running and job.counts is None and (record := records.get(job.name)) is not None:
        job = _running_job(job, record)
    crew = _crew(job, records, found)
    whole = _in_full(job, _fields(job, running, found)) | {
        "crew": crew[:MOST_CREW], "earlier_workers": len(crew[MOST_CREW:]),
        "busiest": _busiest(records) if job.is_running else [],
    }  # fmt: skip
    if is_json:
        console.write_json(whole)
    else:
        _show(job, whole, "" if found is None else server)


def _running_job(job: Job, record: CrawlRecord) -> Job:
    """Return a running job of this machine with the figures that its process publishes."""
    from curtsy.crawling.progress import CrawlTotals

    totals = CrawlTotals(fetched=record.pages, cached=record.cached, bytes=record.bytes)
    totals.seconds = max(0.0, record.updated_at - record.started_at)
    return msgspec.structs.replace(job, totals=totals, seeds=record.seeds)


def _shared_one(server: str, name: str, timeout: float | None = None) -> JobSummary | None:
    """Return a shared job; None if there is no such job with work. Raises StoreError, after `timeout` seconds."""
    import asyncio

    from curtsy.crawling.frontier.redis_jobs import find

    found = asyncio.run(find(server, name, timeout))
    return found if found is not None and _is_begun(found) else None


def _crew(job: Job, records: dict[str, CrawlRecord], found: JobSummary | None) -> list[dict[str, Any]]:
    """Return the workers of a job, the latest heartbeat first; of a shared one also those that have ended."""
    from curtsy.crawling.jobs import TOTALS, totals_of

    if found is None:
        alone = [records[job.name]] if job.is_running and job.name in records else []
        return [
            {"worker": None, "process": each.process, "state": "running",
             "heard_ago": max(0.0, time.time() - each.updated_at), "pages": each.pages + each.cached}
            for each in alone
        ]  # fmt: skip
    from curtsy.crawling.frontier.redis_jobs import PRESENCE

    def state_of(beat: Heartbeat | None) -> str | None:
        if beat is None:
            return None
        return "stopped" if beat.is_last else "running" if beat.ago <= PRESENCE else "lost"

    noted = (name.removeprefix(f"{TOTALS}:") for name in found.notes if name.startswith(f"{TOTALS}:"))
    beats: dict[str, Heartbeat | None] = {**dict.fromkeys(noted), **found.seen}
    return [
        {
            "worker": worker,
            "process": None if (record := records.get(f"{job.name}:{worker}")) is None else record.process,
            "state": state_of(beat),
            "heard_ago": None if beat is None else beat.ago,
            "pages": totals_of(found.notes, f"{TOTALS}:{worker}").pages,
        }
        for worker, beat in sorted(beats.items(), key=lambda each: math.inf if each[1] is None else each[1].ago)
    ]


def _busiest(records: dict[str, CrawlRecord]) -> list[dict[str, Any]]:
    """Return the hosts of the running workers with the most pages, summed over their runs."""
    rows: dict[str, dict[str, Any]] = {}
    for host in (host for record in records.values() for host in record.hosts):
        row = rows.setdefault(host.host, {"host": host.host, "pages": 0, "errors": 0})
        row["pages"] += host.pages
        row["errors"] += host.errors
    return sorted(rows.values(), key=lambda row: (-row["pages"], row["host"]))[:MOST_HOSTS]


def _in_full(job: Job, fields: dict[str, Any]) -> dict[str, Any]:
    from curtsy.crawling.extract.scope import Scope
    from curtsy.crawling.outputs.skipped import read_examples
    from curtsy.crawling.progress import CrawlSummary, Ended

    try:
        scope = Scope.from_plain(job.notes["scope"]).describe()
    except (KeyError, CurtsyError):
        scope = None
    summary = CrawlSummary(Ended.DONE, job.totals, fields["queued"] or 0, None).as_dict()
    totals = {
        name: value for name, value in summary.items() if name not in ("ended", "resume_in", "worker_deaths", *fields)
    }
    examples = read_examples(job.notes.get("output:examples"))
    return {
        **fields, "seeds": [mask_url(seed) for seed in job.seeds], "scope": scope, **totals,
        "examples": {reason: {"url": each.url, "message": each.message} for reason, each in examples.items()},
        "resume": _resume(job),
    }  # fmt: skip


def _resume(job: Job) -> str | None:
    """Return the command line that resumes a job, with a higher limit if the limit was reached."""
    from curtsy.cli.report import resuming
    from curtsy.crawling.jobs import COMMAND

    line = job.notes.get(COMMAND)
    if not isinstance(line, str):
        return None
    limit = re.search(r"--(?:limit|max-pages)[ =](\d+)", line)
    words = shlex.split(line)
    place, higher = words.index("curtsy"), limit is not None and job.totals.pages >= int(limit[1])
    return resuming(words[place + 1 :], higher=higher, pages=job.totals.pages, variables=words[:place])


def _show(job: Job, whole: dict[str, Any], server: str) -> None:
    """Print a job; `server` is the URL of its store if it is shared, else empty."""
    from curtsy.cli.report import headline, show_reasons
    from curtsy.crawling.jobs import TOTALS
    from curtsy.crawling.outputs.skipped import read_examples

    terminal = console.out()
    terminal.print(console.text((console.plain(job.name), "bold")))
    workers = sum(name.startswith(TOTALS) for name in job.notes)
    fetched = headline(job.totals) + (f" by {workers:,} workers" if workers > 1 else "")
    outputs = [name for name in job.notes if name.startswith("output:") and name.count(":") > 1]
    more, seeds = len(whole["crew"]) + whole["earlier_workers"] - MOST_WORKERS, whole["seeds"]
    rows: list[tuple[str, str | None]] = [
        ("state", _state(whole, ": stopped at {}, can be resumed")),
        ("start", None if not seeds else seeds[0] + (f" and {len(seeds) - 1:,} more" if len(seeds) > 1 else "")),
        ("scope", whole["scope"]),
        ("fetched", None if job.counts is None and whole["pages"] is None else fetched),
        ("left", None if whole["queued"] is None else f"{whole['queued']:,}"),
        ("hosts", None if whole["hosts"] is None else f"{whole['hosts']:,}"),
        ("changed", _ago(whole["changed_at"]) or None),
        ("store", mask_url(server)) if server else ("folder", whole["folder"]),
        *(("output", path) for path in sorted(name.split(":", 2)[2] for name in outputs)),
        *(("worker", _worker(each)) for each in whole["crew"][:MOST_WORKERS]),
        ("", f"and {console.counted(more, 'more worker')}" if more > 0 else None),
    ]
    console.show_rows(terminal, [(name, value) for name, value in rows if value is not None])
    if whole["busiest"]:
        terminal.print(console.text(("\nHosts of this run", "bold")))
        table = console.fitted_table("host", "pages", "errors", right=("pages", "errors"))
        for each in whole["busiest"]:
            table.add_row(console.plain(each["host"]), f"{each['pages']:,}", f"{each['errors']:,}")
        console.show(terminal, table)
    show_reasons(terminal, job.totals, read_examples(job.notes.get("output:examples")))
    if whole["resume"] is not None and whole["state"] == "unfinished":
        terminal.print(console.text(("\nResume", "bold")))
        terminal.print(f"  {console.plain(whole['resume'])}", soft_wrap=True)


def _worker(each: dict[str, Any]) -> str:
    name = " as ".join(word for word in (each["process"], each["worker"]) if word is not None)
    heard = "no heartbeat known" if each["heard_ago"] is None else f"last heartbeat {span(each['heard_ago'])} ago"
    state = f", {each['state']}" if each["state"] in ("stopped", "lost") else ""
    return f"{name}: {console.counted(each['pages'], 'page')}{state}, {heard}"


@command(
    ("curtsy jobs requeue docs --failed", "Fetch all failed URLs again, at the next start of the job."),
    ("curtsy jobs requeue docs --failed --url '/blog/'", "Only those that match."),
    ("curtsy jobs requeue news --worker 3fa94be0c1d2", "The pages of a worker whose disk is lost (shared job)."),
    ("curtsy jobs requeue docs --since 2h", "The pages of the last two hours."),
    of=jobs,
)
@click.argument("name", metavar="NAME", type=job_name, shell_complete=known_jobs)
@click.option("--failed", "is_failed", is_flag=True, help="URLs whose requests failed.")
@click.option("--worker", metavar="WORKER", help="Pages of this worker of a shared job; jobs show names them.")
@click.option("--since", type=duration, metavar="TIME", help="Pages of the last 90s, 10m, 2h, 3d.")
@click.option("--url", "pattern", metavar="REGEX", help="Only URLs that match.")
@YES
@JSON
@click.pass_obj
def requeue(
    given: CommandContext, name: str, is_failed: bool, worker: str | None, since: float | None, pattern: str | None,
    is_sure: bool, is_json: bool,
) -> None:  # fmt: skip
    """Put finished URLs back into the queue of a job, which fetches them again at its next start.

    Use it for URLs that failed, and for pages that were lost with their output. Pages that are still in an output will
    be there twice. With --worker alone, those that its outputs have stored in an object store are left out. A job of
    this machine must not be running; neither may the named worker of a shared one. Pages of outputs that are stored
    with --durable cannot be lost, and are not recorded; pages of a shared job without an output are not either.
    """
    import asyncio

    from curtsy.crawling.frontier.protocol import Requeue
    from curtsy.crawling.jobs import folder_of, look, requeue_in_folder, requeue_on_server, shared

    if is_failed == (worker is not None or since is not None):
        raise click.UsageError("Give --failed, or --worker, --since or both.")
    try:
        search = None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise click.UsageError(f"--url {pattern!r} is no regular expression: {error}.") from None
    server = _server(given)
    found = _shared_one(server, name) if server else None
    if worker is not None and found is None:
        raise click.UsageError(f"--worker is for a shared job, and {name} is none. Give --store, or --since.")
    job = look(folder_of(name), server) if found is None else shared(found)
    reasons = frozenset(job.totals.failed) if is_failed else None
    choice = Requeue(
        reasons=reasons, worker=worker, since=0.0 if since is None else time.time() - since, pattern=search
    )
    if not is_failed and not is_sure:
        console.confirm(
            "this fetches pages again; those that are still in an output will be there twice",
            f"Put pages of {console.plain(name)} back into its queue?",
        )
    if found is None:
        count = requeue_in_folder(folder_of(name), choice)
    else:
        count = asyncio.run(requeue_on_server(server, job, choice))
    if is_json:
        console.write_json({"job": name, "requeued": count})
    else:
        console.say(f"{console.counted(count, 'URL')} of the job {name} {'is' if count == 1 else 'are'} queued again.")
        if not count and not is_failed:
            console.say(NOT_RECORDED)


@command(
    ("curtsy jobs rm docs", "Delete a job: its queue and its seen URLs. Its outputs remain."),
    ("curtsy jobs rm --yes docs news", "Several, without confirmation."),
    of=jobs,
)
@click.argument("names", metavar="NAME...", type=job_name, shell_complete=known_jobs, nargs=-1, required=True)
@YES
@click.option("--json", "is_json", is_flag=True, help="Write the deleted jobs as JSON.")
@click.pass_obj
def rm(given: CommandContext, names: tuple[str, ...], is_sure: bool, is_json: bool) -> Exit:
    """Delete jobs. Their outputs remain; their queues are lost. A job that is running is not deleted."""
    import asyncio

    from curtsy.crawling.jobs import folder_of, remove

    shared_jobs = _shared(given)
    if not is_sure and any(name in shared_jobs or folder_of(name).exists() for name in names):
        what = f"Delete {', '.join(map(console.plain, names))}, with all queued URLs?"
        console.confirm("this deletes the queues of jobs", what)
    removed, code = [], Exit.FINE
    for name in names:
        try:
            if (found := shared_jobs.get(name)) is not None:
                from curtsy.crawling.frontier.redis_jobs import forget

                if found.workers:
                    raise StoreError(running_job(name))
                asyncio.run(forget(_server(given), name))
            else:
                remove(folder_of(name), _server(given))
        except CurtsyError as error:
            console.say(str(error))
            code = Exit.ERROR
            continue
        removed.append(name)
        if not is_json:
            console.say(f"the job {name} is deleted.")
    if is_json:
        console.write_json({"removed": removed})
    return code
