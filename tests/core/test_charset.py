"""Bytes to text: which word on the encoding counts, and that no body is a crash."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.charset import PRESCAN, codec_of, declared, decode, octets
from tests.support.bounds import cpu_within

JAPANESE = "これは文字コードの判定のための短い例文です。東京都の天気は晴れ、最高気温は二十五度でしょう。"
CHINESE = "这是一个用于检测字符编码的简短示例。北京市今天天气晴朗，最高气温二十五度。我们希望程序能够正确识别。"
TAIWANESE = "這是一個用來偵測字元編碼的簡短範例。台北市今天天氣晴朗，最高氣溫二十五度。我們希望程式能夠正確識別。"
KOREAN = "이것은 문자 인코딩을 감지하기 위한 짧은 예문입니다. 오늘 서울의 날씨는 맑고 최고 기온은 이십오 도입니다."
RUSSIAN = "Это короткий пример текста для определения кодировки. Сегодня в Москве ясная погода, двадцать пять градусов."
FRENCH = "Été comme hiver, le garçon déjeune à la même heure près de la forêt où naît le fleuve."


def page(text: str, head: str = "") -> str:
    return f"<!doctype html><html><head>{head}<title>x</title></head><body><p>{text}</p></body></html>"


@pytest.mark.parametrize(
    ("mark", "codec"),
    [(codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")],
)
def test_a_byte_order_mark_wins_over_header_and_page(mark: bytes, codec: str) -> None:
    """U12"""
    text = page("grüße", '<meta charset="koi8-r">')

    assert decode(mark + text.encode(codec), "text/html; charset=shift_jis") == (text, codec)


def test_the_header_wins_over_the_page() -> None:
    """U12"""
    body = page(RUSSIAN, '<meta charset="utf-8">').encode("koi8-r")

    text, encoding = decode(body, "text/html; charset=KOI8-R")

    assert RUSSIAN in text
    assert encoding == "koi8-r"


@pytest.mark.parametrize(
    "content_type",
    [
        "text/html; charset=windows-1251",
        'text/html;charset="windows-1251"',
        "text/html; CHARSET = 'Windows-1251' ; x=y",
        "text/html; boundary=a; charset=cp1251",
    ],
)
def test_the_charset_is_found_however_the_header_is_written(content_type: str) -> None:
    """U12"""
    assert declared(content_type) == "windows-1251"


@pytest.mark.parametrize("content_type", [None, "", "text/html", "text/html; charset=", "text/html; charset=klingon"])
def test_a_header_without_a_known_charset_says_nothing(content_type: str | None) -> None:
    """U12"""
    assert declared(content_type) is None


@pytest.mark.parametrize(
    "head",
    [
        "<meta charset=windows-1251>",
        "<META CharSet='windows-1251' />",
        '<meta name="x" content="a > b"><meta charset="windows-1251">',
        '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">',
        "<meta content='text/html;charset=windows-1251' http-equiv=content-type>",
        '<!-- <meta charset="utf-8"> --><meta charset="windows-1251">',
        '<meta charset="klingon"><meta charset="windows-1251">',
    ],
)
def test_a_page_may_say_itself_what_it_is_in(head: str) -> None:
    """U12"""
    text, encoding = decode(page("Привет", head).encode("cp1251"), "text/html")

    assert encoding == "windows-1251"
    assert "Привет" in text


def test_an_xml_declaration_is_read() -> None:
    """U12"""
    body = '<?xml version="1.0" encoding="EUC-JP"?><a>日本</a>'.encode("euc-jp")

    assert decode(body, "application/xml") == (body.decode("euc-jp"), "euc-jp")


def test_utf_16_xml_needs_no_mark() -> None:
    """U12"""
    text = '<?xml version="1.0" encoding="utf-16"?><a>日本</a>'

    assert decode(text.encode("utf-16-le"), "text/xml") == (text, "utf-16-le")
    assert decode(text.encode("utf-16-be"), "text/xml") == (text, "utf-16-be")


def test_a_page_that_says_in_ascii_that_it_is_utf_16_is_utf_8() -> None:
    """U12, HTML Standard 13.2.3.2"""
    body = page("grüße", "<meta charset=utf-16>").encode()

    assert decode(body, "text/html") == (body.decode(), "utf-8")


@pytest.mark.parametrize(
    "before", [" ", "<style>x</style>", "<!-- <meta charset=euc-jp> -->", "<script>'<meta charset=big5>'</script>"]
)
def test_a_declaration_beyond_the_first_kilobyte_counts_if_nothing_else_says_it(before: str) -> None:
    """U12, HTML Standard 13.2.3.4: a browser begins anew there."""
    late = " " * PRESCAN + before + "<meta charset=iso-8859-5>"
    body = page(RUSSIAN, late).encode("iso8859-5")

    text, encoding = decode(body, "text/html")

    assert encoding == "iso8859-5"
    assert RUSSIAN in text
    assert decode(body, "text/html; charset=windows-1251")[1] == "windows-1251"
    assert decode(b"<meta charset=utf-8>" + body, "text/html")[1] == "utf-8"
    assert decode(codecs.BOM_UTF8 + body, "text/html")[1] == "utf-8"


def test_a_late_declaration_of_a_page_in_ascii_says_nothing() -> None:
    """U12"""
    assert decode(b" " * PRESCAN + b"<meta charset=koi8-r>", "text/html")[1] == "utf-8"


@given(st.binary(max_size=300), st.sampled_from(["utf-8", "koi8-r", "gb18030", "cp932", "iso2022-jp-2", "utf-16-le"]))
def test_octets_are_the_text_in_utf_8(body: bytes, codec: str) -> None:
    """U12: what is read in parts and in one go is the same."""
    content_type = f"text/html; charset={'iso-2022-jp' if codec == 'iso2022-jp-2' else codec}"

    text, encoding = octets(body, content_type, 10_000)

    assert (text.encode("latin-1").decode("utf-8", "replace"), encoding) == decode(body, content_type)
    assert octets(body, content_type, 7)[0] == text[:7]


def test_a_script_that_quotes_a_declaration_is_not_that_page() -> None:
    """U12"""
    body = 'write("<meta charset=koi8-r>é")'.encode()

    assert decode(body, "text/javascript")[1] == "utf-8"


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("latin1", "windows-1252"),
        ("ISO-8859-1", "windows-1252"),
        (" us-ascii ", "windows-1252"),
        ("iso-8859-9", "windows-1254"),
        ("gb2312", "gb18030"),
        ("GBK", "gb18030"),
        ("Shift_JIS", "cp932"),
        ("x-sjis", "cp932"),
        ("ks_c_5601-1987", "cp949"),
        ("big5", "big5hkscs"),
        ("tis-620", "cp874"),
        ("utf8", "utf-8"),
    ],
)
def test_labels_mean_what_the_encoding_standard_says(label: str, codec: str) -> None:
    """U12"""
    assert codec_of(label) == codec


@pytest.mark.parametrize(
    "label", ["utf-7", "zip", "base64", "rot13", "unicode_escape", "idna", "undefined", "mbcs", ""]
)
def test_what_is_no_label_of_the_web_is_none(label: str) -> None:
    """U12: a page cannot choose a codec of Python's that does something else than decode text."""
    assert codec_of(label) is None


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        (JAPANESE, "cp932"),
        (JAPANESE, "euc-jp"),
        (JAPANESE, "iso2022-jp-2"),
        (CHINESE, "gb18030"),
        (TAIWANESE, "big5hkscs"),
        (KOREAN, "cp949"),
        (RUSSIAN, "windows-1251"),
        (RUSSIAN, "koi8-r"),
        (FRENCH, "windows-1252"),
        (FRENCH, "utf-8"),
        (JAPANESE, "utf-8"),
    ],
)
def test_what_nobody_says_is_detected(text: str, codec: str) -> None:
    """U12"""
    found, encoding = decode(page(text).encode(codec), "text/html")

    assert encoding == codec
    assert text in found


def test_a_few_broken_letters_do_not_make_utf_8_something_else() -> None:
    """U12"""
    body = page(JAPANESE * 3).encode()
    broken = body[:120] + b"\xff" + body[120:]

    text, encoding = decode(broken, "text/html")

    assert encoding == "utf-8"
    assert text.count("\ufffd") <= 4


def test_an_empty_body_is_empty_text() -> None:
    """U12"""
    assert decode(b"", None) == ("", "utf-8")


@pytest.mark.parametrize(
    "body",
    [
        b"<script" * 200_000 + b"\xff",
        b"<" * (4 << 20) + b"\xe9",
        b"\xa4\xa2" * (2 << 20),
        bytes(range(256)) * 16_384,
        b"\0" * (1 << 20) + b"\xff",
        b" " * PRESCAN + b'<meta http-equiv=content-type content="charset=' + b" " * 200_000 + b';">\xff',
        b" " * PRESCAN + b'<meta http-equiv=content-type content="' + b"charset " * 25_000 + b'">\xff',
    ],
    ids=["scripts", "brackets", "kana", "all bytes", "zeros", "blanks in a declaration", "declarations of nothing"],
)
def test_a_large_hostile_body_is_decoded_in_bounded_time(body: bytes) -> None:
    """U12"""
    with cpu_within(5):
        decode(body, "text/html; charset=" + " " * 60_000)
        decode(body, "text/html")


@given(st.binary(max_size=3000), st.none() | st.text(max_size=80) | st.just("text/html"))
def test_no_body_and_no_header_is_a_crash(body: bytes, content_type: str | None) -> None:
    """U12"""
    text, encoding = decode(body, content_type)

    assert isinstance(text, str)
    codecs.lookup(encoding)


@given(st.text(max_size=500))
def test_any_text_in_utf_8_comes_back_as_it_was(text: str) -> None:
    """U12"""
    expected = text.removeprefix("\ufeff")

    assert (
        decode(text.encode("utf-8", "replace"), "text/plain; charset=utf-8")[0]
        == expected.encode("utf-8", "replace").decode()
    )


@given(st.binary(max_size=200))
def test_a_page_can_say_anything_in_its_head(said: bytes) -> None:
    """U12"""
    decode(b"<meta charset='" + said + b"'><meta http-equiv=content-type content='" + said, "text/html")
