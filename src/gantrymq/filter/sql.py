"""SQL92 filter expressions: the grammar, and `compile_sql` (`filter.parser.SelectorParser`).

Expressions have the same meaning as in Java; `tests/filter/sql_table.jsonl` has Java's results for two thousand of
them. There is one exception: Java stops reading where an expression could end, and reads `a LIKE 'x'` as `a`, which no
message matches. Here the rest is a syntax error.

Limits of the language: NOT binds more tightly than a comparison (`NOT (a = 1)` needs its parentheses). There is no
LIKE, no arithmetic and no escape except `''`. A comment `--` needs a line end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import TYPE_CHECKING, Any

from gantrymq.errors import ClientError
from gantrymq.filter import expression
from gantrymq.filter.expression import Part, Unfit
from gantrymq.filter.filter_cache import FilterCache
from gantrymq.filter.program import matcher
from gantrymq.protocol.steps import finish

if TYPE_CHECKING:
    from lark import Lark, Token

#: Maximum length of an expression, in characters. Compiling it takes about 50 ms, in steps. Java has no limit.
MAX_LENGTH = 16 * 1024
#: Maximum total length of the cached expressions, in characters. Their compiled form has 15 to 50 times as many bytes.
_CACHED_CHARACTERS = 256 * 1024
#: Maximum number of tokens that one step parses.
_STEP = 100
#: Maximum number of characters of the expression that an error quotes.
_QUOTED = 40

_GRAMMAR = r"""
start: _anything
_anything: disjunction
?disjunction: conjunction
    | disjunction OR conjunction
?conjunction: equality
    | conjunction AND equality
?equality: comparison
    | equality EQUALITY comparison                                 -> equality
    | equality IS [NOT] NULL                                       -> is_null
?comparison: unary
    | comparison ORDER unary                                       -> order
    | comparison [NOT] SEARCH STRING                               -> search
    | comparison [NOT] BETWEEN unary AND unary                     -> between
    | comparison [NOT] IN "(" STRING ("," STRING)* ")"             -> is_in
?unary: primary
    | SIGN unary                                                   -> sign
    | NOT unary                                                    -> negation
?primary: STRING                                                   -> string
    | DECIMAL                                                      -> decimal
    | FLOATING                                                     -> floating
    | TRUE                                                         -> true
    | FALSE                                                        -> false
    | NULL                                                         -> null
    | NAME                                                         -> prop
    | "(" _anything ")"

EQUALITY.2: "=" | "<>"
ORDER: "<=" | ">=" | "<" | ">"
SIGN: "+" | "-"
STRING: /'[^']*(?:''[^']*)*'/
FLOATING.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
DECIMAL: /0|[1-9][0-9]*[lL]?/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/
BLANKS: /[ \t\n\r\f]+/
LINE_COMMENT.2: /--[^\n\r]*[\n\r]/
BLOCK_COMMENT.2: /\/\*[^*]*\*(?:\*|[^*\/][^*]*\*)*\//
%declare AND BETWEEN FALSE IN IS NOT NULL OR SEARCH TRUE
%ignore BLANKS
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""

_KEYWORDS = {
    name: name for name in ("AND", "BETWEEN", "FALSE", "IN", "IS", "NOT", "NULL", "OR", "TRUE")
} | dict.fromkeys(("CONTAINS", "STARTSWITH", "ENDSWITH"), "SEARCH")

#: Hints for errors, by the word or character that is not valid here.
_REMEDIES = {
    '"': "strings stand in single quotes",
    "'": "a string ends with a single quote; one inside it is doubled",
    "!": "unequal is <>",
    "LIKE": "use CONTAINS, STARTSWITH or ENDSWITH",
    "=": "equal is a single =",
    "/": "there is no arithmetic; a comment ends with */",
    "*": "there is no arithmetic, and TRUE takes all messages",
    "%": "there is no arithmetic",
    "+": "there is no arithmetic",
    "-": "there is no arithmetic; a comment -- ends with its line",
}

#: Returns whether a message with these property bytes, as in its record, matches.
SqlFilter = Callable[[bytes], bool]


def compile_sql(text: str) -> SqlFilter:
    """Compiles an expression to a function. Raises ClientError with the column and a hint."""
    return finish(compile_in_steps(text))


def compile_in_steps(text: str) -> Generator[None, None, SqlFilter]:
    """Compiles like `compile_sql`, in steps of a millisecond. Also raises RequestRefused, see `FilterCache`."""
    if len(text) > MAX_LENGTH:
        raise ClientError(f"an SQL92 filter of {len(text)} characters: at most {MAX_LENGTH} are taken")
    known = compiled_filters.get(text) or filters_in_use.get(text)
    if known is None:
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise ClientError(f"an SQL92 filter that is no Unicode text: {e}") from e
        filters_in_use.take(text)
        try:
            part = yield from _parse(text)
        except BaseException as e:
            filters_in_use.give_back(text)
            if isinstance(e, ClientError):
                compiled_filters[text] = str(e)
            raise
        known = filters_in_use.get(text)
        if known is None:
            known = filters_in_use.add(text, matcher(part.program, part.look_ups))
        else:
            # Another request has compiled it in the meantime.
            filters_in_use.give_back(text)
        compiled_filters[text] = known
    elif isinstance(known, str):
        raise ClientError(known)
    return known


class CompiledFilters(dict[str, SqlFilter | str]):
    """Cache of compiled expressions or their errors, oldest evicted (`SelectorParser.PARSE_CACHE` has 100 entries)."""

    characters = 0

    def __setitem__(self, text: str, compiled: SqlFilter | str) -> None:
        if text not in self:
            self.characters += len(text)
        super().__setitem__(text, compiled)
        while self.characters > _CACHED_CHARACTERS:
            oldest = next(iter(self))
            self.characters -= len(oldest)
            del self[oldest]


compiled_filters = CompiledFilters()
#: Compiled filters of pending requests. Equal expressions share a filter.
filters_in_use: FilterCache[SqlFilter] = FilterCache()


def parse_sql(text: str) -> Part:
    """Parses an expression as a condition with three values. Raises ClientError."""
    return finish(_parse(text))


def _parse(text: str) -> Generator[None, None, Part]:
    from lark import UnexpectedCharacters, UnexpectedToken

    try:
        parser = _parser().parse_interactive(text)
        for n, _ in enumerate(parser.iter_parse(), 1):
            if not n % _STEP:
                yield
        part = parser.feed_eof()  # type: ignore[no-untyped-call]
    except UnexpectedCharacters as e:
        raise _error(text, e.pos_in_stream or 0, f"{e.char!r} can't stand here", e.char) from e
    except UnexpectedToken as e:
        if e.token.type == "$END":
            raise _error(text, len(text), "the expression isn't complete") from e
        word = str(e.token)
        raise _error(text, e.token.start_pos or 0, f"{word[:_QUOTED]!r} can't stand here", word.upper()) from e
    except _Misplaced as e:
        raise _error(text, e.at, str(e)) from e
    assert isinstance(part, Part)
    return part


def _error(text: str, at: int, problem: str, word: str = "") -> ClientError:
    remedy = _REMEDIES.get(word)
    message = f"SQL92 filter, column {at + 1}: {problem}{f' ({remedy})' if remedy else ''}"
    if at:
        message += f", behind {'...' if at > _QUOTED else ''}{text[max(0, at - _QUOTED) : at]!r}"
    return ClientError(message)


class _Misplaced(Exception):
    """An `Unfit` error with its position in the text."""

    def __init__(self, reason: Unfit, at: int) -> None:
        super().__init__(str(reason))
        self.at = at


def _at(token: Token, build: Callable[..., Part], *args: Any) -> Part:
    try:
        return build(*args)
    except Unfit as e:
        raise _Misplaced(e, token.start_pos or 0) from e


@cache
def _parser() -> Lark:
    """Returns the parser. It is created for the first filter, because lark takes 40 ms to load."""
    from lark import Lark, Token, Transformer

    class Builder(Transformer[Token, Part]):
        """Builds parts from the grammar's rules during parsing, so there is no tree and no recursion."""

        def start(self, children: list[Part]) -> Part:
            try:
                return expression.condition(children[0])
            except Unfit as e:
                raise _Misplaced(e, 0) from e

        def disjunction(self, children: list[Any]) -> Part:
            left, word, right = children
            return _at(word, expression.disjunction, left, right)

        def conjunction(self, children: list[Any]) -> Part:
            left, word, right = children
            return _at(word, expression.conjunction, left, right)

        def equality(self, children: list[Any]) -> Part:
            left, symbol, right = children
            equal = _at(symbol, expression.equal, left, right)
            return equal if symbol == "=" else _at(symbol, expression.negation, equal)

        def is_null(self, children: list[Any]) -> Part:
            part, word, is_not, _ = children
            null = _at(word, expression.is_null, part)
            return null if is_not is None else _at(word, expression.negation, null)

        def order(self, children: list[Any]) -> Part:
            left, symbol, right = children
            return _at(symbol, expression.order, str(symbol), left, right)

        def search(self, children: list[Any]) -> Part:
            part, is_not, word, literal = children
            wanted = expression.string(literal)
            return _at(word, expression.search, word.upper(), part, wanted, is_not is not None)

        def between(self, children: list[Any]) -> Part:
            part, is_not, word, low, _, high = children
            build = expression.between if is_not is None else expression.not_between
            return _at(word, build, part, low, high)

        def is_in(self, children: list[Any]) -> Part:
            part, is_not, word, *literals = children
            return _at(word, expression.is_in, part, [expression.string(each) for each in literals], is_not is not None)

        def sign(self, children: list[Any]) -> Part:
            sign, part = children
            return part if sign == "+" else _at(sign, expression.negative, part)

        def negation(self, children: list[Any]) -> Part:
            return _at(children[0], expression.negation, children[1])

        def string(self, children: list[Token]) -> Part:
            return expression.constant(expression.string(children[0]))

        def decimal(self, children: list[Token]) -> Part:
            return _at(children[0], expression.decimal, str(children[0]))

        def floating(self, children: list[Token]) -> Part:
            return _at(children[0], expression.floating, str(children[0]))

        def prop(self, children: list[Token]) -> Part:
            return expression.prop(str(children[0]))

        def true(self, _: list[Token]) -> Part:
            return expression.constant(True)

        def false(self, _: list[Token]) -> Part:
            return expression.constant(False)

        def null(self, _: list[Token]) -> Part:
            return expression.constant(None)

    def keyword(token: Token) -> Token:
        # NAME is ASCII, so `upper` cannot turn another letter into a keyword.
        token.type = _KEYWORDS.get(token.upper(), "NAME")
        return token

    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=Builder(), lexer_callbacks={"NAME": keyword})
