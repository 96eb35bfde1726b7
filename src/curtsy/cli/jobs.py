"""`curtsy jobs`: named crawls, which can be resumed."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from curtsy.cli import console
from curtsy.cli.command import Command, Group
from curtsy.cli.context import CommandContext, Exit

if TYPE_CHECKING:
    from rich.console import Console

    from curtsy.core.crawl_record import CrawlRecord
    from curtsy.crawling.frontier.redis_jobs import JobSummary
    from curtsy.crawling.jobs import Job
    from curtsy.crawling.progress import CrawlTotals

    _Text = click.ParamType[str]
else:
    _Text = click.ParamType


class JobName(_Text):
    """Name of a job, or path of its folder."""

    name = "job"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Validate the name."""
        from curtsy.core.errors import PolicyError
        from curtsy.crawling.jobs import folder_of

        try:
            folder_of(value)
        except PolicyError as error:
            self.fail(str(error), param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the names of this machine's jobs."""
        from curtsy.crawling.jobs import FRONTIER, jobs_folder

        found = jobs_folder().glob(f"*/{FRONTIER}")
        names = sorted(path.parent.name for path in found)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group(
    cls=Group,
    examples=(
        ("curtsy jobs ls", "All jobs of this machine, with their progress."),
        ("curtsy jobs show docs", "One job in full, and how to resume it."),
    ),
)
def jobs() -> None:
    """List, show or remove crawls that can be resumed.

    A crawl with --job NAME saves its queue and all seen URLs. After a stop or a kill, the same command resumes it. With
    --store redis://… the jobs that many machines share are included.
    """


def _running(given: CommandContext) -> dict[str, CrawlRecord]:
    """Return the records of running crawls, by job, or by `job:worker` for a shared job.

    Returns an empty dict if the store cannot be read.
    """
    from curtsy.core.crawl_record import CrawlRecord, crawl_key
    from curtsy.core.errors import CurtsyError
    from curtsy.stores import read_all

    prefix = crawl_key("")
    try:
        store = given.open_store()
        try:
            found = [(key, each) for key, each in read_all(store, prefix) if isinstance(each, CrawlRecord)]
        finally:
            store.close()
    except CurtsyError:
        return {}
    return {key.removeprefix(prefix): each for key, each in found if each.state in ("running", "waiting")}


def _server(given: CommandContext) -> str:
    """Return the URL of a store that machines can share; empty for any other store."""
    from curtsy.crawling.start import SHARED

    store = given.settings().store or ""
    return store if store.startswith(SHARED) else ""


def _shared(given: CommandContext) -> list[JobSummary]:
    """Return the jobs of a shared store."""
    store = _server(given)
    if not store:
        return []
    from curtsy.crawling.frontier.redis_jobs import jobs as shared_jobs

    return asyncio.run(shared_jobs(store))


def _fields(job: Job, running: dict[str, CrawlRecord]) -> dict[str, Any]:
    """Return the JSON fields of a local job."""
    from curtsy.crawling.jobs import ENDED

    found: dict[str, Any] = {
        "name": job.name, "state": "damaged", "is_shared": False, "workers": int(job.is_running), "pages": None,
        "queued": None, "failed": None, "skipped": None, "hosts": None, "changed_at": job.changed_at,
        "folder": job.folder, "ended": job.notes.get(ENDED) or None,
    }  # fmt: skip
    if job.is_running:
        found["state"] = "running"
        if (record := running.get(job.name)) is not None:
            found |= {
                "pages": record.pages + record.cached, "queued": record.queued,
                "failed": record.failed, "skipped": record.skipped, "changed_at": record.updated_at,
            }  # fmt: skip
    elif job.counts is not None:
        left = job.counts.queued + job.counts.leased
        found |= {"state": "unfinished" if left else "done", "queued": left, "hosts": job.counts.hosts}
        found |= _came_of(job.totals)
    return found


def _came_of(totals: CrawlTotals) -> dict[str, Any]:
    """Return the counts of a job's URLs, as in its summary."""
    return {"pages": totals.pages, "failed": sum(totals.failed.values()), "skipped": sum(totals.skipped.values())}


def _shared_fields(job: JobSummary) -> dict[str, Any]:
    """Return the JSON fields of a shared job."""
    from curtsy.core.errors import StoreError
    from curtsy.crawling.jobs import ENDED, shared

    left = job.counts.queued + job.counts.leased
    state = "running" if job.workers else "unfinished" if left else "done"
    try:
        came = _came_of(shared(job).totals)
    except StoreError:  # a damaged job must not hide the others
        came = dict.fromkeys(("pages", "failed", "skipped"))
    return {
        "name": job.name, "state": state, "is_shared": True, "workers": job.workers, "queued": left, **came,
        "hosts": job.counts.hosts, "changed_at": job.changed_at, "folder": None,
        "ended": None if job.workers else job.notes.get(ENDED) or None,
    }  # fmt: skip


NARROW = 70
"""Width in columns below which the failures are omitted."""

MOST_HOSTS = 10
"""Maximum number of a job's hosts shown."""

MOST_WORKERS = 20
"""Maximum number of a job's workers shown."""

STYLES = {"running": "green", "unfinished": "yellow", "done": "dim", "damaged": "red"}


@jobs.command("ls", cls=Command, examples=(("curtsy jobs ls", "All jobs, by name."),))
@click.option("--json", "is_json", is_flag=True, help="Write JSON.")
@click.pass_obj
def ls(given: CommandContext, is_json: bool) -> Exit:
    """List the jobs with their progress and the time of the last change."""
    from rich.text import Text

    from curtsy.core.messages import span
    from curtsy.crawling.jobs import jobs as local_jobs

    running = _running(given)
    found = [_fields(each, running) for each in local_jobs()] + [_shared_fields(each) for each in _shared(given)]
    if is_json:
        console.write_json(found)
        return Exit.FINE
    if not found:
        console.say("there are no jobs. curtsy crawl URL --job NAME starts one.")
        return Exit.FINE
    terminal = console.out()
    failed = ["failed"] if terminal.width >= NARROW else []
    table = console.table("job", "state", "pages", "left", *failed, "changed", right=("pages", "left", "failed"))
    for each in found:
        state = each["state"] + (f" by {each['workers']}" if each["is_shared"] and each["workers"] else "")
        state += f" ({limit})" if (limit := _limit(each)) is not None else ""
        changed = each["changed_at"]
        table.add_row(
            console.plain(each["name"]), Text(state, style=STYLES[each["state"]]), _number(each["pages"]),
            _number(each["queued"]), *(_number(each[name]) for name in failed),
            "–" if changed is None else f"{span(max(0.0, time.time() - changed))} ago",
        )  # fmt: skip
    console.show(terminal, table)
    if any(each["state"] == "unfinished" for each in found):
        console.say("unfinished jobs can be resumed: curtsy jobs show NAME shows how.")
    return Exit.FINE


def _limit(fields: dict[str, Any]) -> str | None:
    """Return the option that ended the last run of an unfinished job; else None."""
    from curtsy.core.messages import LIMITS

    return LIMITS.get(fields["ended"]) if fields["state"] == "unfinished" else None


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


@jobs.command(
    "show",
    cls=Command,
    examples=(
        ("curtsy jobs show docs", "Its start URLs, progress, skipped URLs with reasons, and how to resume it."),
        ("curtsy jobs show docs --json | jq -r .resume", "Only the command line that resumes it."),
    ),
)
@click.argument("name", metavar="NAME", type=JobName())
@click.option("--json", "is_json", is_flag=True, help="Write JSON.")
@click.pass_obj
def show(given: CommandContext, name: str, is_json: bool) -> Exit:
    """Show one job: its start URLs, scope, totals, skipped URLs with reasons, and how to resume it.

    While it runs, also its workers with their last heartbeat, and the hosts with the most pages. The counts of a shared
    job are those of all its workers.
    """
    from curtsy.crawling.jobs import folder_of, look, shared

    running, server = _running(given), _server(given)
    found = _shared_one(server, name)
    if found is not None:
        job, fields, crew = shared(found), _shared_fields(found), _crew(found, running)
    else:
        server, job = "", look(folder_of(name))
        fields, crew = _fields(job, running), _alone(job, running)
    told = [each for key, each in running.items() if key == job.name or key.startswith(f"{job.name}:")]
    whole = _in_full(job, fields) | {"crew": crew, "busiest": _busiest(told) if job.is_running else []}
    if is_json:
        console.write_json(whole)
    else:
        _show(job, whole, server)
    return Exit.FINE


def _shared_one(server: str, name: str) -> JobSummary | None:
    if not server:
        return None
    from curtsy.crawling.frontier.redis_jobs import find

    return asyncio.run(find(server, name))


def _crew(job: JobSummary, running: dict[str, CrawlRecord]) -> list[dict[str, Any]]:
    """Return the workers of a shared job, including those that did not sign off; the latest heartbeat first."""
    from curtsy.crawling.jobs import TOTALS, totals_of

    return [
        {
            "worker": worker,
            "process": record.process if (record := running.get(f"{job.name}:{worker}")) is not None else None,
            "heard_ago": ago,
            "pages": totals_of(job.notes, f"{TOTALS}:{worker}").pages,
        }
        for worker, ago in sorted(job.heard.items(), key=lambda each: each[1])
    ]


def _alone(job: Job, running: dict[str, CrawlRecord]) -> list[dict[str, Any]]:
    """Return the worker of a running local job, in the same form."""
    record = running.get(job.name) if job.is_running else None
    if record is None:
        return []
    ago = max(0.0, time.time() - record.updated_at)
    return [{"worker": None, "process": record.process, "heard_ago": ago, "pages": record.pages + record.cached}]


def _busiest(told: list[CrawlRecord]) -> list[dict[str, Any]]:
    """Return the hosts of the running workers with the most pages, summed over their runs."""
    rows: dict[str, dict[str, Any]] = {}
    for host in (host for record in told for host in record.hosts):
        row = rows.setdefault(host.host, {"host": host.host, "pages": 0, "errors": 0})
        row["pages"] += host.pages
        row["errors"] += host.errors
    return sorted(rows.values(), key=lambda row: (-row["pages"], row["host"]))[:MOST_HOSTS]


def _in_full(job: Job, fields: dict[str, Any]) -> dict[str, Any]:
    from curtsy.core.errors import CurtsyError
    from curtsy.core.secrets import mask_url
    from curtsy.crawling.extract.scope import Scope
    from curtsy.crawling.outputs.skipped import read_examples
    from curtsy.crawling.progress import CrawlSummary, Ended

    try:
        scope = Scope.from_plain(job.notes["scope"]).describe()
    except (KeyError, CurtsyError):
        scope = None
    summary = CrawlSummary(Ended.DONE, job.totals, fields["queued"] or 0, None).as_dict()
    totals = {name: value for name, value in summary.items() if name not in ("ended", "resume_in", *fields)}
    examples = read_examples(job.notes.get("output:examples"))
    return {
        **fields, "seeds": [mask_url(seed) for seed in job.seeds], "scope": scope, **totals,
        "examples": {reason: {"url": each.url, "message": each.message} for reason, each in examples.items()},
        "resume": _resume(job),
    }  # fmt: skip


def _resume(job: Job) -> str | None:
    """Return the command line that resumes a job, with a higher limit if the limit was reached."""
    from curtsy.cli.report import command

    line = job.notes.get("command")
    if not isinstance(line, str):
        return None
    limit = re.search(r"--(?:limit|max-pages)[ =](\d+)", line)
    return command(shlex.split(line)[1:], higher=limit is not None and job.totals.pages >= int(limit[1]))


def _show(job: Job, whole: dict[str, Any], server: str) -> None:
    """Print a job; `server` is the URL of its store if it is shared, else empty."""
    from rich.text import Text

    from curtsy.cli.report import show_reasons
    from curtsy.core.messages import span
    from curtsy.core.secrets import mask_url
    from curtsy.crawling.outputs.skipped import read_examples

    terminal = console.out()
    terminal.print(Text(console.plain(job.name), style="bold"))
    limit = _limit(whole)
    ended = "" if limit is None else f": stopped at {limit}, can be resumed"
    by = f" by {whole['workers']:,}" if whole["is_shared"] and whole["workers"] else ""
    rows: list[tuple[str, str]] = [("state", whole["state"] + by + ended)]
    rows += [("start", each) for each in whole["seeds"]]
    if whole["scope"] is not None:
        rows.append(("scope", whole["scope"]))
    if job.counts is not None:
        rows.append(("fetched", _brought(job)))
    rows += [(title, f"{whole[name]:,}") for title, name in (("left", "queued"), ("hosts", "hosts"))
             if whole[name] is not None]  # fmt: skip
    if whole["changed_at"]:
        rows.append(("changed", f"{span(max(0.0, time.time() - whole['changed_at']))} ago"))
    rows.append(("store", mask_url(server)) if server else ("folder", whole["folder"]))
    outputs = [name for name in job.notes if name.startswith("output:") and name.count(":") > 1]
    rows += [("output", path) for path in sorted(name.split(":", 2)[2] for name in outputs)]
    rows += [("worker", _worker(each)) for each in whole["crew"][:MOST_WORKERS]]
    if (more := len(whole["crew"]) - MOST_WORKERS) > 0:
        rows.append(("", f"and {console.counted(more, 'more worker')}"))
    console.show_rows(terminal, rows)
    _show_hosts(terminal, whole["busiest"])
    show_reasons(terminal, job.totals, read_examples(job.notes.get("output:examples")))
    if whole["resume"] is not None and whole["state"] == "unfinished":
        terminal.print()
        terminal.print(Text("Resume", style="bold"))
        terminal.print(f"  {console.plain(whole['resume'])}", soft_wrap=True)


def _brought(job: Job) -> str:
    """Return the totals of a job, with the number of its workers."""
    from curtsy.cli.report import headline
    from curtsy.crawling.jobs import TOTALS

    workers = sum(name.startswith(TOTALS) for name in job.notes)
    return headline(job.totals) + (f" by {workers:,} workers" if workers > 1 else "")


def _worker(each: dict[str, Any]) -> str:
    from curtsy.core.messages import span

    name = " as ".join(word for word in (each["process"], each["worker"]) if word is not None)
    return f"{name}: {console.counted(each['pages'], 'page')}, last heartbeat {span(each['heard_ago'])} ago"


def _show_hosts(terminal: Console, hosts: list[dict[str, Any]]) -> None:
    """Print the hosts with the most pages of a running job."""
    if not hosts:
        return
    from rich.text import Text

    terminal.print()
    terminal.print(Text("Hosts of this run", style="bold"))
    table = console.table("host", "pages", "errors", right=("pages", "errors"))
    for each in hosts:
        table.add_row(console.plain(each["host"]), f"{each['pages']:,}", f"{each['errors']:,}")
    console.show(terminal, table)


@jobs.command(
    "rm",
    cls=Command,
    examples=(
        ("curtsy jobs rm docs", "Delete a job: its queue and its seen URLs. Its outputs remain."),
        ("curtsy jobs rm --yes docs news", "Several, without confirmation."),
    ),
)
@click.argument("names", metavar="NAME...", type=JobName(), nargs=-1, required=True)
@click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "is_json", is_flag=True, help="Write the deleted jobs as JSON.")
@click.pass_obj
def rm(given: CommandContext, names: tuple[str, ...], is_sure: bool, is_json: bool) -> Exit:
    """Delete jobs. Their outputs remain; their queues are lost."""
    from curtsy.core.errors import CurtsyError
    from curtsy.crawling.jobs import folder_of, remove

    shared = {each.name for each in _shared(given)}
    if not is_sure:
        if not sys.stdin.isatty():
            raise click.UsageError("this deletes the queues of jobs. Confirm with --yes.")
        click.confirm(f"Delete {', '.join(map(console.plain, names))}, with all queued URLs?", err=True, abort=True)
    removed, code = [], Exit.FINE
    for name in names:
        try:
            if name in shared:
                from curtsy.crawling.frontier.redis_jobs import forget

                asyncio.run(forget(_server(given), name))
            else:
                remove(folder_of(name))
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
