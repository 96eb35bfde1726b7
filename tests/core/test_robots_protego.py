"""Protego is asked the same questions. Where it says something else, a paragraph must explain it."""

import re
from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from protego import Protego

from curtsy.core.robots import parse, product_token


@dataclass(frozen=True)
class Question:
    """A file, who asks, and for what."""

    lines: tuple[str, ...]
    agent: str
    url: str

    @property
    def fields(self) -> list[tuple[str, str]]:
        """The lines that have a field: its name in lower case, and its value."""
        pairs = [line.split("#")[0].partition(":") for line in self.lines]
        return [(name.strip().lower(), value.strip()) for name, colon, value in pairs if colon]

    @property
    def patterns(self) -> list[str]:
        return [value for name, value in self.fields if name in ("allow", "disallow")]

    @property
    def path(self) -> str:
        return self.url.removeprefix("https://example.org")


def other_records_end_its_list_of_agents(question: Question) -> bool:
    names = [name for name, _ in question.fields if name not in ("sitemap", "host")]
    other = [number for number, name in enumerate(names) if name not in ("user-agent", "allow", "disallow")]
    return any("user-agent" in names[:number] and "user-agent" in names[number:] for number in other)


def it_finds_an_agent_by_part_of_its_name(question: Question) -> bool:
    asked = question.agent.lower()
    named = {value.lower() for name, value in question.fields if name == "user-agent"}
    return any(name != product_token(asked) and name.rstrip("*") in asked for name in named if name not in ("", "*"))


def it_does_not_take_the_token_from_the_file(question: Question) -> bool:
    values = [value for name, value in question.fields if name == "user-agent"]
    return any(value != "*" and product_token(value) != value for value in values)


def it_decodes_and_counts_reserved_octets_otherwise(question: Question) -> bool:
    return any(re.search(r"[^A-Za-z0-9_.~/=*$-]", text) for text in (*question.patterns, question.path))


def it_reads_a_dollar_in_two_ways(question: Question) -> bool:
    return any("$" in pattern[:-1] or ("$" in pattern and "$" in question.path) for pattern in question.patterns)


def it_allows_the_folder_of_an_index_page(question: Question) -> bool:
    return any(name == "allow" and value.endswith("/index.html") for name, value in question.fields)


def it_ends_lines_at_other_characters(question: Question) -> bool:
    return any(len(line.splitlines()) > 1 for line in question.lines)


def it_reads_one_word_or_three_without_a_colon(question: Question) -> bool:
    return any(":" not in line and len(line.split("#")[0].split()) not in (0, 2) for line in question.lines)


def it_reads_a_whole_url_as_a_path(question: Question) -> bool:
    return any(pattern.startswith("http") for pattern in question.patterns)


def it_allows_robots_txt_with_a_query(question: Question) -> bool:
    return question.path.startswith("/robots.txt?")


EXPLANATIONS = {
    other_records_end_its_list_of_agents: "2.2.4: other records must not interfere",
    it_finds_an_agent_by_part_of_its_name: "2.2.1: the product token, whole",
    it_does_not_take_the_token_from_the_file: "2.2.1: a product token has letters, - and _; Google's parser",
    it_decodes_and_counts_reserved_octets_otherwise: "2.2.2: reserved octets stay as they are, and count as they are",
    it_reads_a_dollar_in_two_ways: "2.2.3: a dollar sign at the end is the end, elsewhere a dollar sign",
    it_allows_the_folder_of_an_index_page: "2.2.2: only what matches; Google's parser has this, too",
    it_ends_lines_at_other_characters: "2.2: EOL is CR, LF or both",
    it_reads_one_word_or_three_without_a_colon: "2.2: no such line; Google's parser takes two words",
    it_reads_a_whole_url_as_a_path: "2.2: a pattern is a path",
    it_allows_robots_txt_with_a_query: "2.2.2: /robots.txt is implicitly allowed, and nothing else",
}


def explanations(question: Question) -> list[str]:
    return [paragraph for explains, paragraph in EXPLANATIONS.items() if explains(question)]


def answers(question: Question) -> tuple[bool, bool]:
    text = "\n".join(question.lines)
    ours = parse(text.encode()).verdict(question.agent, question.url).allowed
    return ours, bool(Protego.parse(text).can_fetch(question.url, question.agent))


plain_bits = st.sampled_from(("/", "a", "b", "*", "a/", "/b", "-", ".", "~", "="))
odd_bits = plain_bits | st.sampled_from(("$", "%61", "%2F", "?", "&", "é", "%C3%A9", "%3D", "index.html", ";"))
agents = st.sampled_from(("ant", "bot", "*", "botnet", "ant-bee"))
odd_agents = agents | st.sampled_from(("bot/1.0", "bot 2", "*bot", "", "BOT"))
records = st.sampled_from(("Sitemap: https://example.org/s.xml", "# x", "", "  ", "Host: h"))
odd_records = records | st.sampled_from(
    ("Crawl-delay: 3", "Hm: x", "User agent bot", "Disallow: /y\x0cDisallow: /a", "Disallow")
)


@st.composite
def questions(draw: st.DrawFn, *, odd: bool) -> Question:
    bits, names, others = (odd_bits, odd_agents, odd_records) if odd else (plain_bits, agents, records)
    rule = st.lists(bits, max_size=5).map(lambda found: "/" + "".join(found))
    anchored = st.tuples(rule, st.sampled_from(("", "", "$"))).map("".join)
    line = (
        st.sampled_from(("User-agent", "user-agent ", "USER-AGENT")).flatmap(
            lambda name: names.map(lambda who: f"{name}: {who}")
        )
        | st.sampled_from(("Disallow", "Allow", "disallow ")).flatmap(
            lambda name: anchored.map(lambda what: f"{name}: {what}")
        )
        | st.sampled_from(("Disallow:", "Allow:"))
        | others
    )
    lines = draw(st.lists(line, max_size=10))
    asked = draw(
        st.sampled_from(("ant", "bot", "botnet", "BOT", "cat", "ant-bee", *(("bot/2.0", "xbot") if odd else ())))
    )
    path = draw(st.lists(bits.filter(lambda bit: bit != "*"), max_size=5).map("".join) | st.just("robots.txt"))
    return Question(("User-agent: *", *lines), asked, f"https://example.org/{path}")


@given(questions(odd=False))
@settings(max_examples=200, deadline=None)
def test_on_plain_files_protego_says_the_same_or_a_paragraph_explains_it(question: Question) -> None:
    """R2, R3"""
    ours, theirs = answers(question)

    assert ours is theirs or explanations(question)


@given(questions(odd=True))
@settings(max_examples=200, deadline=None)
def test_on_odd_files_protego_says_the_same_or_a_paragraph_explains_it(question: Question) -> None:
    """R2, R3, R4, U11"""
    ours, theirs = answers(question)

    if ours is not theirs:
        for paragraph in explanations(question):
            event(paragraph)
    assert ours is theirs or explanations(question)


@pytest.mark.parametrize(
    ("question", "allowed", "paragraph"),
    [
        (("User-agent: a\nCrawl-delay: 5\nUser-agent: b\nDisallow: /", "a", "/"), False, "2.2.4"),
        (("User-agent: bot\nDisallow: /", "botnet", "/"), True, "2.2.1"),
        (("User-agent: bot/1.0\nDisallow: /", "bot", "/"), False, "2.2.1"),
        (("User-agent: *\nDisallow: /a%3Db", "a", "/a=b"), True, "2.2.2"),
        (("User-agent: *\nDisallow: /a?b\nAllow: /a**", "a", "/a?b"), True, "2.2.2"),
        (("User-agent: *\nDisallow: /a$", "a", "/a$b"), True, "2.2.3"),
        (("User-agent: *\nDisallow: /\nAllow: /index.html", "a", "/"), False, "2.2.2"),
        (("User-agent: *\nDisallow: /a\x0cDisallow: /b", "a", "/b"), True, "2.2"),
        (("User agent a\nDisallow: /", "a", "/"), True, "2.2"),
        (("User-agent: *\nDisallow: /", "a", "/robots.txt?a"), False, "2.2.2"),
    ],
)
def test_each_explanation_has_an_example(question: tuple[str, str, str], allowed: bool, paragraph: str) -> None:
    """R2, R3, R4, U11: our answer is the paragraph's; protego's is not looked at here, it may learn"""
    text, agent, path = question

    verdict = parse(text.encode()).verdict(agent, f"https://example.org{path}")

    assert verdict.allowed is allowed
    assert any(
        reason.startswith(f"{paragraph}:") for reason in explanations(Question(tuple(text.split("\n")), agent, path))
    )
