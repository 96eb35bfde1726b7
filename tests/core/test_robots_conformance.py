"""RFC 9309 rule by rule, with the details of U11; where the RFC is silent, what Google's parser does."""

import pytest

from curtsy.core.robots import MAX_BYTES, MAX_LINE, parse, product_token
from tests.support.snapshot import Snapshot

Case = tuple[str, str | bytes, str, str, bool]
"""Name, file, agent, URL, allowed."""


def everyone(*rules: str) -> str:
    return "\n".join(("User-agent: *", *rules, ""))


def check(case: Case) -> None:
    _, body, agent, url, allowed = case
    robots = parse(body.encode() if isinstance(body, str) else body)

    verdict = robots.verdict(agent, url)

    assert verdict.allowed is allowed, verdict.reason


def table(*cases: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case[0] for case in cases])


TWO_AGENTS = "User-agent: a\nUser-agent: b\nDisallow: /x\n\nUser-agent: *\nDisallow: /y\n"
OWN_AND_ALL = "User-agent: *\nDisallow: /\n\nUser-agent: foo\nDisallow: /x\n"
SPLIT = "User-agent: foo\nDisallow: /x\n\nUser-agent: *\nDisallow: /\n\nUser-agent: FOO\nDisallow: /y\n"


@table(
    ("an empty file allows all", "", "foo", "/x", True),
    ("a file of blank lines allows all", "\n\n \t\n", "foo", "/x", True),
    ("the first of two agents has the rules", TWO_AGENTS, "a", "/x", False),
    ("the second of two agents has the rules", TWO_AGENTS, "b", "/x", False),
    ("an agent with a group does not have those for *", TWO_AGENTS, "b", "/y", True),
    ("an agent without a group has those for *", TWO_AGENTS, "c", "/y", False),
    ("an agent without a group does not have another's", TWO_AGENTS, "c", "/x", True),
    ("the order of groups does not matter", OWN_AND_ALL, "foo", "/z", True),
    ("the own group forbids", OWN_AND_ALL, "foo", "/x", False),
    ("no group for the agent and none for *", "User-agent: bar\nDisallow: /\n", "foo", "/x", True),
    ("groups of one agent are combined: the first", SPLIT, "foo", "/x", False),
    ("groups of one agent are combined: the last", SPLIT, "foo", "/y", False),
    ("groups of one agent are combined: nothing of *", SPLIT, "foo", "/z", True),
    ("groups for * are combined", "User-agent: *\nDisallow: /x\nUser-agent: *\nDisallow: /y\n", "foo", "/x", False),
    (
        "one group names the agent and *: the agent",
        "User-agent: *\nUser-agent: foo\nDisallow: /x\n",
        "foo",
        "/x",
        False,
    ),
    ("one group names the agent and *: others", "User-agent: *\nUser-agent: foo\nDisallow: /x\n", "bar", "/x", False),
    (
        "naming an agent twice in a group is no harm",
        "User-agent: foo\nUser-agent: foo\nDisallow: /x\n",
        "foo",
        "/x",
        False,
    ),
    ("rules before any agent are ignored", "Disallow: /\nUser-agent: foo\nDisallow: /x\n", "foo", "/y", True),
    ("rules before any agent are nobody's", "Disallow: /\n", "foo", "/y", True),
    ("empty lines do not end a list of agents", "User-agent: a\n\n\nUser-agent: b\n\nDisallow: /x\n", "a", "/x", False),
    ("empty lines do not end a group", "User-agent: a\n\nDisallow: /x\n\n\nDisallow: /y\n", "a", "/y", False),
    ("comments do not end a list of agents", "User-agent: a\n# and\nUser-agent: b\nDisallow: /x\n", "a", "/x", False),
    (
        "rubbish does not end a list of agents",
        "User-agent: a\nhm hm hm\nUser-agent: b\nDisallow: /x\n",
        "a",
        "/x",
        False,
    ),
    ("rubbish does not end a group", "User-agent: a\nDisallow: /x\nhm\nDisallow: /y\n", "a", "/y", False),
    (
        "an agent line after a rule opens a group",
        "User-agent: a\nDisallow: /x\nUser-agent: b\nDisallow: /y\n",
        "b",
        "/x",
        True,
    ),
    ("the last group may have no rules", "User-agent: *\nDisallow: /\n\nUser-agent: foo\n", "foo", "/x", True),
)
def test_groups_are_formed_and_chosen_as_sections_2_1_and_2_2_1_say(case: Case) -> None:
    """R2, U11"""
    check(case)


@table(
    ("Crawl-delay between agents", "User-agent: a\nCrawl-delay: 5\nUser-agent: b\nDisallow: /x\n", "a", "/x", False),
    ("Sitemap between agents", "User-agent: a\nSitemap: http://h/s\nUser-agent: b\nDisallow: /x\n", "a", "/x", False),
    ("unknown field between agents", "User-agent: a\nHost: h\nUser-agent: b\nDisallow: /x\n", "a", "/x", False),
    (
        "Content-Signal between agents",
        "User-agent: a\nContent-Signal: x=no\nUser-agent: b\nDisallow: /x\n",
        "a",
        "/x",
        False,
    ),
    ("a record and an empty line", "User-agent: a\nCrawl-delay: 5\n\nUser-agent: b\nDisallow: /x\n", "a", "/x", False),
    ("Sitemap inside a group", "User-agent: a\nDisallow: /x\nSitemap: http://h/s\nDisallow: /y\n", "a", "/y", False),
    ("Crawl-delay inside a group", "User-agent: a\nDisallow: /x\nCrawl-delay: 5\nDisallow: /y\n", "a", "/y", False),
    (
        "a group with only an empty Disallow",
        "User-agent: a\nDisallow:\n\nUser-agent: *\nDisallow: /\n",
        "a",
        "/x",
        True,
    ),
    (
        "an empty Disallow ends a list of agents",
        "User-agent: a\nDisallow:\nUser-agent: b\nDisallow: /\n",
        "a",
        "/x",
        True,
    ),
    ("an empty Allow ends a list of agents", "User-agent: a\nAllow:\nUser-agent: b\nDisallow: /\n", "a", "/x", True),
    (
        "a group with only a Crawl-delay",
        "User-agent: *\nDisallow: /\n\nUser-agent: a\nCrawl-delay: 5\n",
        "a",
        "/x",
        True,
    ),
)
def test_other_records_do_not_interfere_as_section_2_2_4_says(case: Case) -> None:
    """U11"""
    check(case)


NAMED = "User-agent: FooBot\nDisallow: /x\n\nUser-agent: *\nDisallow: /y\n"


@table(
    ("the token", NAMED, "FooBot", "/x", False),
    ("the token in lower case", NAMED, "foobot", "/x", False),
    ("the token in upper case", NAMED, "FOOBOT", "/x", False),
    ("the whole header", NAMED, "FooBot/2.1 (+https://example.org/bot)", "/x", False),
    ("the header with a space before it", NAMED, "  FooBot/2.1", "/x", False),
    ("a token that begins with it", NAMED, "FooBotNews", "/x", True),
    ("a token that it begins with", NAMED, "Foo", "/x", True),
    ("a token with a hyphen behind it", NAMED, "FooBot-News", "/x", True),
    ("a token with a word before it", NAMED, "MyFooBot", "/x", True),
    ("a token in the comment of the header", NAMED, "Mozilla/5.0 (compatible; FooBot/2.1)", "/x", True),
    ("an empty agent has the rules for *", NAMED, "", "/y", False),
    ("an agent without a token has the rules for *", NAMED, "(007)", "/y", False),
    ("a token that goes on with a digit", NAMED, "FooBot2", "/x", True),
    ("a token that goes on with a dot", NAMED, "FooBot.org/1.0", "/x", True),
    ("a token that goes on with a letter of another alphabet", NAMED, "FooBoté/1.0", "/x", True),
    ("an agent named * has the rules for *", NAMED, "*", "/y", False),
    ("hyphen and underscore are part of a token", "User-agent: a-b_c\nDisallow: /x\n", "A-B_C/1", "/x", False),
    ("a version in the file is cut off", "User-agent: FooBot/1.0\nDisallow: /x\n", "foobot", "/x", False),
    ("words behind the token in the file are cut off", "User-agent: Foo Bar\nDisallow: /x\n", "foo", "/x", False),
    ("a digit is part of a token", "User-agent: Bot2go\nDisallow: /x\n", "bot2GO/1.0", "/x", False),
    ("a digit does not end a token in the file", "User-agent: bot2go\nDisallow: /x\n", "bot", "/x", True),
    ("a digit does not end our token", "User-agent: bot\nDisallow: /x\n", "bot2go", "/x", True),
    ("a dot does not end a token in the file", "User-agent: bot.net\nDisallow: /x\n", "bot", "/x", True),
    ("letters of other alphabets are part of a token", "User-agent: boté\nDisallow: /x\n", "boté", "/x", False),
    ("a token may begin with a digit", "User-agent: 007\nDisallow: /x\n", "007", "/x", False),
    ("a value without a token is nobody", "User-agent: (007)\nDisallow: /x\n", "(007)", "/x", True),
    ("an empty value is nobody", "User-agent:\nDisallow: /x\n", "foo", "/x", True),
    ("an empty value is not the empty agent", "User-agent:\nDisallow: /x\n", "", "/x", True),
    ("an empty value opens a group", "User-agent: *\nDisallow: /x\nUser-agent:\nDisallow: /y\n", "foo", "/y", True),
    ("* with words behind it is everyone", "User-agent: * (all)\nDisallow: /x\n", "foo", "/x", False),
    ("* with a tab behind it is everyone", "User-agent: *\tall\nDisallow: /x\n", "foo", "/x", False),
    ("* with a comment behind it is everyone", "User-agent: *# all\nDisallow: /x\n", "foo", "/x", False),
    ("* with letters behind it is nobody", "User-agent: *bot\nDisallow: /x\n", "bot", "/x", True),
    ("** is nobody", "User-agent: **\nDisallow: /x\n", "bot", "/x", True),
    ("a star behind a token is cut off", "User-agent: foo*\nDisallow: /x\n", "foo", "/x", False),
    ("a star is not a prefix match", "User-agent: foo*\nDisallow: /x\n", "foobar", "/x", True),
    ("a list is its first agent", "User-agent: foo, bar\nDisallow: /x\n", "bar", "/x", True),
)
def test_an_agent_is_found_by_its_whole_product_token(case: Case) -> None:
    """R2, U10, U11; RFC 9309, 2.2.1; Google's parser for what the file may write around a token"""
    check(case)


@pytest.mark.parametrize(
    ("agent", "token"),
    [
        ("AIAssistantBot/1.0 (+https://example.org/)", "AIAssistantBot"),
        ("curtsy", "curtsy"),
        ("a-b_C9", "a-b_C9"),
        ("Wren9bot/2", "Wren9bot"),
        ("wren.example bot", "wren.example"),
        ("wren*", "wren"),
        ("Mozilla/5.0 (compatible; x)", "Mozilla"),
        (" \tfoo bar", "foo"),
        ("", ""),
        ("9lives", "9lives"),
        ("ünder", "ünder"),
        ("(x)", ""),
        ("\ud800", ""),
    ],
)
def test_the_product_token_ends_at_the_first_delimiter(agent: str, token: str) -> None:
    """U10; RFC 9309, 2.2.1"""
    assert product_token(agent) == token


@table(
    ("a rule is a prefix", everyone("Disallow: /x"), "a", "/xyz", False),
    ("a rule begins at the first octet", everyone("Disallow: /x"), "a", "/a/x", True),
    ("case matters", everyone("Disallow: /X"), "a", "/x", True),
    ("a slash at the end matters", everyone("Disallow: /x/"), "a", "/x", True),
    ("the longest wins: Allow", everyone("Disallow: /x", "Allow: /x/y"), "a", "/x/y", True),
    ("the longest wins: Disallow", everyone("Allow: /x", "Disallow: /x/y"), "a", "/x/y", False),
    ("the order does not matter", everyone("Allow: /x/y", "Disallow: /x"), "a", "/x/y", True),
    ("a tie goes to Allow", everyone("Disallow: /x", "Allow: /x"), "a", "/x", True),
    ("a tie goes to Allow, the other way round", everyone("Allow: /x", "Disallow: /x"), "a", "/x", True),
    ("a tie of different patterns goes to Allow", everyone("Disallow: /x*", "Allow: /xy"), "a", "/xy", True),
    ("duplicates are no harm", everyone("Disallow: /x", "Disallow: /x", "Disallow: /x"), "a", "/x", False),
    ("an empty Disallow forbids nothing", everyone("Disallow:"), "a", "/x", True),
    ("an empty Allow allows nothing more", everyone("Disallow: /", "Allow:"), "a", "/x", False),
    ("white space is an empty pattern", everyone("Disallow: \t "), "a", "/x", True),
    ("no rule matches", everyone("Disallow: /x"), "a", "/y", True),
    ("/robots.txt is always allowed", everyone("Disallow: /"), "a", "/robots.txt", True),
    ("/robots.txt of a whole URL", everyone("Disallow: /robots.txt"), "a", "https://h/robots.txt#x", True),
    ("/robots.txt with an escape", everyone("Disallow: /"), "a", "/robots%2Etxt", True),
    ("/robots.txt in another folder is a page", everyone("Disallow: /"), "a", "/x/robots.txt", False),
    ("/robots.txt is case-sensitive", everyone("Disallow: /"), "a", "/Robots.txt", False),
    ("/robots.txt with a query is a page", everyone("Disallow: /"), "a", "/robots.txt?x", False),
    ("a pattern without a slash matches nothing", everyone("Disallow: x"), "a", "/x", True),
    ("a whole URL as a pattern matches nothing", everyone("Disallow: http://h/x"), "a", "http://h/x", True),
    ("a pattern with only a query matches nothing", everyone("Disallow: ?x"), "a", "/?x", True),
    ("an index page is not its folder", everyone("Disallow: /", "Allow: /x/index.html"), "a", "/x/", False),
    ("a pattern has the query in it", everyone("Disallow: /x?id="), "a", "/x?id=7", False),
    ("a path rule holds for any query", everyone("Disallow: /x"), "a", "/x?id=7", False),
    ("parameters are part of the path", everyone("Disallow: /x;p"), "a", "/x;p=1", False),
    ("a dot is a dot", everyone("Disallow: /x.html"), "a", "/xahtml", True),
    ("a plus is a plus", everyone("Disallow: /x+y"), "a", "/xxy", True),
    ("brackets are brackets", everyone("Disallow: /[xy]"), "a", "/x", True),
)
def test_rules_are_matched_as_section_2_2_2_says(case: Case) -> None:
    """R3, U11"""
    check(case)


@table(
    ("zero octets", everyone("Disallow: /a*b"), "a", "/ab", False),
    ("many octets", everyone("Disallow: /a*b"), "a", "/a/x/y/b/c", False),
    ("none found", everyone("Disallow: /a*b"), "a", "/ac", True),
    ("at the end", everyone("Disallow: /a*"), "a", "/a", False),
    ("at the beginning", everyone("Disallow: *.gif"), "a", "/x/y.gif?z", False),
    ("alone", everyone("Disallow: *"), "a", "/", False),
    ("twice in a row", everyone("Disallow: /a**b"), "a", "/axb", False),
    ("over a slash", everyone("Disallow: /*/x"), "a", "/a/b/x", False),
    ("needs what is between", everyone("Disallow: /*/x"), "a", "/x", True),
    ("over a question mark", everyone("Disallow: /*id="), "a", "/p?q=1&id=2", False),
    ("pieces in order", everyone("Disallow: /*b*a"), "a", "/ab", True),
    ("pieces do not overlap", everyone("Disallow: /*aa*aa"), "a", "/aaa", True),
    ("pieces side by side", everyone("Disallow: /*aa*aa"), "a", "/aaaa", False),
    ("a piece and the anchor do not overlap", everyone("Disallow: /*aa*aa$"), "a", "/aaa", True),
    ("the anchor needs the end", everyone("Disallow: /a$"), "a", "/ab", True),
    ("the anchor at the end", everyone("Disallow: /a$"), "a", "/a", False),
    ("the anchor sees the query", everyone("Disallow: /a$"), "a", "/a?b", True),
    ("the anchor does not see the fragment", everyone("Disallow: /a$"), "a", "/a#b", False),
    ("the anchor behind a star", everyone("Disallow: /a*$"), "a", "/abc", False),
    ("star and anchor alone", everyone("Disallow: *$"), "a", "/abc", False),
    ("the anchor alone matches nothing", everyone("Disallow: $"), "a", "/", True),
    ("the root alone", everyone("Disallow: /$"), "a", "https://h", False),
    ("not the root", everyone("Disallow: /$"), "a", "https://h/x", True),
    ("the last of two places", everyone("Disallow: /*.php$"), "a", "/a.php/b.php", False),
    ("not at the end", everyone("Disallow: /*.php$"), "a", "/a.php/b", True),
    ("a dollar in the middle is a dollar", everyone("Disallow: /a$b"), "a", "/a$bc", False),
    ("a dollar in the middle anchors nothing", everyone("Disallow: /a$b"), "a", "/a", True),
    ("a dollar in the middle, escaped in the URL", everyone("Disallow: /a$b"), "a", "/a%24b", False),
    ("two dollars: the first is a dollar", everyone("Disallow: /a$$"), "a", "/a$", False),
    ("two dollars: the second anchors", everyone("Disallow: /a$$"), "a", "/a$b", True),
    ("a dollar before a star is a dollar", everyone("Disallow: /a$*"), "a", "/ab", True),
    ("%2A is a literal star", everyone("Disallow: /a%2Ab"), "a", "/a*b", False),
    ("%2A is a literal star, escaped in the URL", everyone("Disallow: /a%2ab"), "a", "/a%2Ab", False),
    ("%2A is no wildcard", everyone("Disallow: /a%2Ab"), "a", "/axb", True),
    ("%24 is a literal dollar", everyone("Disallow: /a%24"), "a", "/a$", False),
    ("%24 anchors nothing", everyone("Disallow: /a%24"), "a", "/a$b", False),
    ("%24 is not the end", everyone("Disallow: /a%24"), "a", "/a", True),
    ("a star in the URL is a star", everyone("Disallow: /a*c"), "a", "/a*c", False),
    ("a star in the URL is no wildcard", everyone("Disallow: /abc"), "a", "/a*c", True),
    ("# starts a comment", everyone("Disallow: /a#b"), "a", "/ax", False),
    ("%23 is a hash", everyone("Disallow: /a%23b"), "a", "/a%23bc", False),
)
def test_special_characters_mean_what_section_2_2_3_says(case: Case) -> None:
    """R3, R4, U11"""
    check(case)


@table(
    ("the star counts", everyone("Allow: /a", "Disallow: /a*"), "a", "/ab", False),
    ("the anchor counts", everyone("Allow: /a", "Disallow: /a$"), "a", "/a", False),
    ("every star counts", everyone("Allow: /ab", "Disallow: /a**"), "a", "/ab", False),
    ("a long pattern beats a long match", everyone("Allow: /*", "Disallow: /a/b"), "a", "/a/b/c", False),
    (
        "a wildcard pattern beats a shorter prefix",
        everyone("Allow: /page", "Disallow: /*.html"),
        "a",
        "/page.html",
        False,
    ),
    ("a longer prefix beats a wildcard", everyone("Allow: /x/page.", "Disallow: /*.html"), "a", "/x/page.html", True),
    ("a wildcard as long as a prefix ties", everyone("Allow: /page", "Disallow: /*.ht"), "a", "/page.html", True),
    ("* and / tie", everyone("Disallow: *", "Allow: /"), "a", "/x", True),
    ("a reserved escape counts three", everyone("Allow: /a%2F", "Disallow: /a**"), "a", "/a%2F", True),
    ("an octet outside ASCII counts three", everyone("Disallow: /é", "Allow: /*****"), "a", "/%C3%A9", False),
    ("an unreserved escape counts one", everyone("Disallow: /%61%62", "Allow: /***"), "a", "/ab", True),
    ("equivalent spellings tie", everyone("Disallow: /%61", "Allow: /a"), "a", "/a", True),
    ("equivalent spellings outside ASCII tie", everyone("Disallow: /%c3%a9", "Allow: /é"), "a", "/é", True),
    ("white space around does not count", everyone("Disallow:     /a   ", "Allow: /a"), "a", "/a", True),
    ("a comment does not count", everyone("Disallow: /a #  long", "Allow: /ab"), "a", "/ab", True),
    ("a dollar in the middle counts one", everyone("Disallow: /a$b", "Allow: /a*b"), "a", "/a$b", True),
    ("a raw bar counts one", everyone("Disallow: /a|b", "Allow: /a*b"), "a", "/a|b", True),
)
def test_the_length_is_that_of_the_whole_pattern(case: Case) -> None:
    """R3, U11; RFC 9309, 2.2.2: the most octets; Google's parser for what an octet is"""
    check(case)


@table(
    ("row 1", everyone("Disallow: /foo/bar?baz=quz"), "a", "/foo/bar?baz=quz", False),
    ("row 2", everyone("Disallow: /foo/bar?baz=https://foo.bar"), "a", "/foo/bar?baz=https%3A%2F%2Ffoo.bar", False),
    (
        "row 2 back",
        everyone("Disallow: /foo/bar?baz=https%3A%2F%2Ffoo.bar"),
        "a",
        "/foo/bar?baz=https://foo.bar",
        False,
    ),
    (
        "row 2 mixed",
        everyone("Disallow: /foo/bar?baz=https%3a//foo.bar"),
        "a",
        "/foo/bar?baz=https:%2f/foo.bar/x",
        False,
    ),
    ("row 2 as it is", everyone("Disallow: /foo/bar?baz=https://foo.bar"), "a", "/foo/bar?baz=https://foo.bar", False),
    ("row 3", everyone("Disallow: /foo/bar/ツ"), "a", "/foo/bar/%E3%83%84", False),
    ("row 3 raw", everyone("Disallow: /foo/bar/ツ"), "a", "https://h/foo/bar/ツ", False),
    ("row 4", everyone("Disallow: /foo/bar/%E3%83%84"), "a", "/foo/bar/%E3%83%84", False),
    ("row 4 raw", everyone("Disallow: /foo/bar/%E3%83%84"), "a", "/foo/bar/ツ", False),
    ("row 4 in lower case", everyone("Disallow: /foo/bar/%e3%83%84"), "a", "/foo/bar/%E3%83%84", False),
    ("row 5", everyone("Disallow: /foo/bar/%62%61%7A"), "a", "/foo/bar/baz", False),
    ("row 5 back", everyone("Disallow: /foo/bar/baz"), "a", "/foo/bar/%62%61%7a", False),
    ("row 5 on both sides", everyone("Disallow: /foo/bar/%62%61%7A"), "a", "/foo/bar/%62a%7a", False),
    ("unreserved marks", everyone("Disallow: /%7Ea%2Db%5Fc%2Ed"), "a", "/~a-b_c.d", False),
    ("%2F is not a slash in a rule", everyone("Disallow: /a%2Fb"), "a", "/a/b", True),
    ("%2F is not a slash in a URL", everyone("Disallow: /a/b"), "a", "/a%2Fb", True),
    ("%2F is %2f", everyone("Disallow: /a%2Fb"), "a", "/a%2fb", False),
    ("%3F is not a question mark", everyone("Disallow: /a?b"), "a", "/a%3Fb", True),
    ("%3A is not a colon in a path", everyone("Disallow: /a:b"), "a", "/a%3Ab", True),
    ("%26 is not an ampersand", everyone("Disallow: /?a&b"), "a", "/?a%26b", True),
    ("%3D is not an equals sign", everyone("Disallow: /?a=b"), "a", "/?a%3Db", True),
    ("%2B is not a plus", everyone("Disallow: /a+b"), "a", "/a%2Bb", True),
    ("a raw space is %20", everyone("Disallow: /a b"), "a", "/a%20b", False),
    ("%20 is a raw space", everyone("Disallow: /a%20b"), "a", "/a b", False),
    ("a raw bar is %7C", everyone("Disallow: /a|b"), "a", "/a%7cb", False),
    ("a raw quote is %22", everyone('Disallow: /a"b'), "a", "/a%22b", False),
    ("a per cent sign alone is itself", everyone("Disallow: /100%"), "a", "/100%/x", False),
    ("a per cent sign alone begins any escape", everyone("Disallow: /a%"), "a", "/a%2Fb", False),
    ("half an escape is itself", everyone("Disallow: /a%4"), "a", "/a%4g", False),
    ("half an escape is not decoded", everyone("Disallow: /a%4"), "a", "/aA", True),
    ("no escape is itself", everyone("Disallow: /a%zz"), "a", "/a%zz", False),
    ("%25 is not decoded", everyone("Disallow: /a%2541"), "a", "/a%41", True),
    ("octets that are no UTF-8", b"User-agent: *\nDisallow: /caf\xe9\n", "a", "/caf%E9", False),
    ("octets that are no UTF-8 are not those of UTF-8", b"User-agent: *\nDisallow: /caf\xe9\n", "a", "/café", True),
    ("an escape beside a star", everyone("Disallow: /*%C3%A9$"), "a", "/xé", False),
    ("an escape before an anchor", everyone("Disallow: /%62$"), "a", "/b", False),
)
def test_octets_compare_as_the_table_of_section_2_2_2_says(case: Case) -> None:
    """R3, U11"""
    check(case)


@table(
    ("LF", "User-agent: *\nDisallow: /x\n", "a", "/x", False),
    ("CR", "User-agent: *\rDisallow: /x\r", "a", "/x", False),
    ("CRLF", "User-agent: *\r\nDisallow: /x\r\n", "a", "/x", False),
    ("all of them", "User-agent: *\rDisallow: /y\r\nDisallow: /x\n\rDisallow: /z", "a", "/z", False),
    ("no line end at the end", "User-agent: *\nDisallow: /x", "a", "/x", False),
    ("a vertical tab ends no line", "User-agent: *\nDisallow: /y\x0bDisallow: /x\n", "a", "/x", True),
    ("a form feed ends no line", "User-agent: *\nDisallow: /y\x0cDisallow: /x\n", "a", "/x", True),
    ("a separator ends no line", "User-agent: *\nDisallow: /y\x1cDisallow: /x\n", "a", "/x", True),
    ("NEL ends no line", "User-agent: *\nDisallow: /y\x85Disallow: /x\n", "a", "/x", True),
    ("an octet 85 ends no line", b"User-agent: *\nDisallow: /y\x85Disallow: /x\n", "a", "/x", True),
    ("U+2028 ends no line", "User-agent: *\nDisallow: /y\u2028Disallow: /x\n", "a", "/x", True),
    ("a UTF-8 mark", b"\xef\xbb\xbfUser-agent: *\nDisallow: /x\n", "a", "/x", False),
    ("a UTF-8 mark that is cut short", b"\xef\xbbUser-agent: *\nDisallow: /x\n", "a", "/x", False),
    ("a UTF-8 mark that is none", b"\xef\x11\xbfUser-agent: *\nDisallow: /x\n", "a", "/x", True),
    (
        "a UTF-8 mark inside the file is rubbish",
        b"User-agent: a\nDisallow: /\n\xef\xbb\xbfUser-agent: b\n",
        "b",
        "/x",
        True,
    ),
    ("UTF-16, little end first", "\ufeffUser-agent: *\nDisallow: /é\n".encode("utf-16-le"), "a", "/é", False),
    ("UTF-16, big end first", "\ufeffUser-agent: *\r\nDisallow: /é\r\n".encode("utf-16-be"), "a", "/é", False),
    ("UTF-16 without a mark", "User-agent: *\nDisallow: /x\n".encode("utf-16-le"), "a", "/x", False),
    ("UTF-16 without a mark, big end first", "User-agent: *\nDisallow: /x\n".encode("utf-16-be"), "a", "/x", False),
    (
        "UTF-16 with half a character",
        b"\xff\xfe" + "User-agent: *\nDisallow: /x\n".encode("utf-16-le") + b"\0",
        "a",
        "/x",
        False,
    ),
    ("NUL ends what is read of a line", b"User-agent: *\nDisallow: /x\0/y\n", "a", "/x", False),
    ("NUL before a field", b"User-agent: *\n\0Disallow: /x\n", "a", "/x", True),
    ("NUL ends only its line", b"User-agent: *\0\nDisallow: /x\0\nDisallow: /y\n", "a", "/y", False),
    ("field names in upper case", "USER-AGENT: *\nDISALLOW: /x\n", "a", "/x", False),
    ("field names in any case", "uSeR-aGeNt: *\ndIsAlLoW: /x\n", "a", "/x", False),
    ("white space before a field", "  User-agent: *\n\tDisallow: /x\n", "a", "/x", False),
    ("white space before a colon", "User-agent : *\nDisallow\t: /x\n", "a", "/x", False),
    ("white space behind a colon", "User-agent:\t *\nDisallow: \t /x\n", "a", "/x", False),
    ("no white space behind a colon", "User-agent:*\nDisallow:/x\n", "a", "/x", False),
    ("white space at the end", "User-agent: * \t\nDisallow: /x \t\n", "a", "/x", False),
    ("a comment behind a rule", "User-agent: * # all\nDisallow: /x # this\n", "a", "/x", False),
    ("a comment without a space", "User-agent: *#all\nDisallow: /x#this\n", "a", "/x", False),
    ("a rule in a comment", "User-agent: *\n#Disallow: /x\n", "a", "/x", True),
    ("a comment hides a colon", "User-agent: *\nDisallow # : /x\n", "a", "/x", True),
    ("a second colon is part of the value", "User-agent: *\nDisallow: /x:y\n", "a", "/x:y", False),
    ("a colon without a field", "User-agent: *\n: /x\n", "a", "/x", True),
)
def test_lines_are_cut_and_cleaned_as_section_2_2_says(case: Case) -> None:
    """R4, U11, F32"""
    check(case)


@table(
    *(
        (name, f"User-agent: *\n{name}: /x\n", "a", "/x", False)
        for name in ("Dissallow", "dissalow", "DISALOW", "diasllow", "Disallaw")
    ),
    *((name, f"{name}: *\nDisallow: /x\n", "a", "/x", False) for name in ("Useragent", "user agent", "USER AGENT")),
    ("Disallowed is another word", everyone("Disallowed: /x"), "a", "/x", True),
    ("Disallow-all is another word", everyone("Disallow-all: /x"), "a", "/x", True),
    ("Allowed is another word", everyone("Disallow: /x", "Allowed: /x/y"), "a", "/x/y", False),
    ("User-agents is another word", "User-agents: *\nDisallow: /x\n", "a", "/x", True),
    ("Allow is not understood misspelt", everyone("Disallow: /x", "Alow: /x/y"), "a", "/x/y", False),
    ("a missing colon", "User-agent *\nDisallow /x\n", "a", "/x", False),
    ("a missing colon and a tab", "User-agent\t*\nDisallow\t \t/x\n", "a", "/x", False),
    ("a missing colon and a comment", "User-agent: *\nDisallow /x # this\n", "a", "/x", False),
    ("a missing colon and a misspelling", "Useragent *\nDisalow /x\n", "a", "/x", False),
    ("a missing colon and a colon in the path", everyone("Disallow /x:y"), "a", "/x:y", False),
    ("three words are no rule", everyone("Disallow /x y"), "a", "/x", True),
    ("one word is no rule", everyone("Disallow"), "a", "/x", True),
    (
        "one word does not end a list of agents",
        "User-agent: a\nDisallow\nUser-agent: b\nDisallow: /x\n",
        "a",
        "/x",
        False,
    ),
)
def test_misspellings_and_missing_colons_are_understood(case: Case) -> None:
    """U11; what is understood is what Google's parser understands, but names match whole"""
    check(case)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("", "/"),
        ("http://www.example.com", "/"),
        ("http://www.example.com/", "/"),
        ("HTTP://www.example.com/a", "/a"),
        ("http://www.example.com/a/", "/a/"),
        ("http://www.example.com/a/b?c=http://d.e/", "/a/b?c=http://d.e/"),
        ("http://www.example.com/a/b?c=d&e=f#fragment", "/a/b?c=d&e=f"),
        ("http://www.example.com?a", "/?a"),
        ("http://www.example.com;a", "/;a"),
        ("http://www.example.com#a/b", "/"),
        ("http://www.example.com/#a", "/"),
        ("http://u:p@www.example.com:8080/a", "/a"),
        ("http://[::1]:80/a", "/a"),
        ("http:///a", "/a"),
        ("ftp://www.example.com/a", "/a"),
        ("example.com", "/"),
        ("example.com/", "/"),
        ("example.com/a", "/a"),
        ("example.com?a", "/?a"),
        ("example.com/a/b?c=http://d.e/", "/a/b?c=http://d.e/"),
        ("example.com/a;b#c", "/a;b"),
        ("//a/b/c", "/b/c"),
        ("/a/b", "/a/b"),
        ("/a//b", "/a//b"),
        ("?a", "/?a"),
        ("#a", "/"),
        ("mailto:someone@example.com", "/"),
        ("http://例え.jp/a", "/a"),
    ],
)
def test_the_path_of_a_url_is_found_as_google_finds_it(url: str, path: str) -> None:
    """U11"""
    robots = parse(f"User-agent: *\nDisallow: {path}$\n".encode())

    assert not robots.verdict("a", url).allowed


@pytest.mark.parametrize(
    "url", ["\0", "\ud800", "http://h/\udcff%", "://", "http://", "%", "\n\r", "http://h/\\..\\x", "x" * 99]
)
def test_a_url_that_is_none_has_a_verdict(url: str) -> None:
    """R1: never an exception"""
    assert not parse(b"User-agent: *\nDisallow: /\n").verdict("a", url).allowed


SIMPLE_EXAMPLE = """\
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
"""
LONGEST_MATCH_EXAMPLE = """\
User-Agent: foobot
Allow: /example/page/
Disallow: /example/page/disallowed.gif
"""


@table(
    ("5.1 everyone: pictures", SIMPLE_EXAMPLE, "other", "/a/b.gif", False),
    ("5.1 everyone: a folder", SIMPLE_EXAMPLE, "other", "/example/x", False),
    ("5.1 everyone: allowed", SIMPLE_EXAMPLE, "other", "/publications/x", True),
    ("5.1 everyone: a picture of an allowed folder", SIMPLE_EXAMPLE, "other", "/publications/x.gif", True),
    ("5.1 foobot: all", SIMPLE_EXAMPLE, "foobot", "/x", False),
    ("5.1 foobot: a page", SIMPLE_EXAMPLE, "foobot", "/example/page.html", True),
    ("5.1 foobot: a picture", SIMPLE_EXAMPLE, "foobot", "/example/allowed.gif", True),
    ("5.1 barbot", SIMPLE_EXAMPLE, "barbot", "/example/page.html", False),
    ("5.1 bazbot", SIMPLE_EXAMPLE, "bazbot", "/example/page.html", False),
    ("5.1 bazbot: pictures", SIMPLE_EXAMPLE, "bazbot", "/a.gif", True),
    ("5.1 quxbot", SIMPLE_EXAMPLE, "quxbot", "/example/page.html", True),
    ("5.2 the longest", LONGEST_MATCH_EXAMPLE, "foobot", "/example/page/disallowed.gif", False),
    ("5.2 the other", LONGEST_MATCH_EXAMPLE, "foobot", "/example/page/x.gif", True),
)
def test_the_examples_of_the_rfc_come_out_as_it_says(case: Case) -> None:
    """R2, R3; RFC 9309, 5.1 and 5.2"""
    check(case)


def test_a_file_is_read_up_to_500_kib() -> None:
    """R4, F28; RFC 9309, 2.5"""
    start = b"User-agent: *\nDisallow: /first\n"
    last = b"Disallow: /last"
    filling = b"#" * (MAX_BYTES - len(start) - len(last) - 1) + b"\n"

    whole = parse(start + filling + last)
    followed = parse(start + filling + last + b"\nDisallow: /beyond\n")

    assert MAX_BYTES == 512_000
    assert not whole.verdict("a", "/last").allowed
    assert not followed.verdict("a", "/last").allowed
    assert not followed.verdict("a", "/first").allowed
    assert followed.verdict("a", "/beyond").allowed


def test_a_line_that_500_kib_cut_through_is_not_used() -> None:
    """R4: half of "Disallow: /private" would be another rule"""
    start = b"User-agent: *\nAllow: /\n"
    filling = b"#" * (MAX_BYTES - len(start) - len(b"Disallow: /pri") - 1) + b"\n"

    robots = parse(start + filling + b"Disallow: /private\n")

    assert robots.verdict("a", "/prize").allowed
    assert robots.verdict("a", "/private").allowed


def test_a_wide_file_is_cut_at_a_whole_line_too() -> None:
    """R4, U11"""
    text = "\ufeffUser-agent: *\nDisallow: /first\n" + "#" * 300_000 + "\nDisallow: /beyond\n"

    robots = parse(text.encode("utf-16-le"))

    assert not robots.verdict("a", "/first").allowed
    assert robots.verdict("a", "/beyond").allowed


def test_a_line_is_read_up_to_what_google_reads_of_it() -> None:
    """R4: the RFC sets no limit for a line"""
    kept = "/" + "a" * (MAX_LINE - len("Disallow: /"))

    robots = parse(f"User-agent: *\nDisallow: {kept}/more\n".encode())

    assert MAX_LINE == 16_663
    assert not robots.verdict("a", f"{kept}/other").allowed
    assert robots.verdict("a", kept[:-1]).allowed


def test_a_verdict_names_the_line_the_rule_and_the_group(snapshot: Snapshot) -> None:
    """R1"""
    robots = parse(
        b"# ours\nUser-agent: *\nDisallow: /\n\nUser-Agent: FooBot  # you\nallow:/x\n  Disallow : /x/y  # no\n"
    )

    verdict = robots.verdict("foobot/1.0", "/x/y/z")

    assert (verdict.allowed, verdict.line) == (False, 7)
    assert verdict.rule == "Disallow : /x/y"
    assert verdict.group == "User-Agent: FooBot"
    assert verdict.rule in verdict.reason
    assert verdict.group in verdict.reason
    assert "line 7" in verdict.reason
    snapshot(verdict.reason)


def test_a_verdict_names_the_group_that_has_the_rule() -> None:
    """R1, U11"""
    robots = parse(b"User-agent: foo\nDisallow: /x\nUser-agent: bar\nUser-agent: FOO\nDisallow: /y\n")

    assert robots.verdict("foo", "/x").group == "User-agent: foo"
    assert robots.verdict("foo", "/y").group == "User-agent: FOO"


@pytest.mark.parametrize(
    ("body", "url", "group"),
    [
        (b"User-agent: *\nDisallow: /x\n", "/y", "User-agent: *"),
        (b"User-agent: *\n", "/y", "User-agent: *"),
        (b"User-agent: b\nDisallow: /\n", "/y", None),
        (b"User-agent: *\nDisallow: /\n", "/robots.txt", None),
    ],
)
def test_a_verdict_without_a_rule_says_why(snapshot: Snapshot, body: bytes, url: str, group: str | None) -> None:
    """R1"""
    verdict = parse(body).verdict("a", url)

    assert (verdict.allowed, verdict.line, verdict.rule) == (True, None, None)
    assert verdict.group == group
    assert (group or "") in verdict.reason
    snapshot(verdict.reason)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_lines_are_counted_whatever_ends_them(end: str) -> None:
    """R1"""
    lines = ("# a", "", "User-agent: *", "", "Disallow: /x", "hm", "", "Disallow: /y")

    robots = parse(end.join(lines).encode())

    assert robots.verdict("a", "/x").line == 5
    assert robots.verdict("a", "/y").line == 8


def test_of_equivalent_rules_the_allow_is_named() -> None:
    """R3; RFC 9309, 2.2.2"""
    robots = parse(b"User-agent: *\nDisallow: /x\nAllow: /x\nAllow: /x\nDisallow: /*y\nAllow: /*y\n")

    assert robots.verdict("a", "/x").line == 3
    assert robots.verdict("a", "/y").line == 6
