"""SQL92 filter expressions: the grammar, and `compile_sql` (`filter.parser.SelectorParser`).

What is understood, and how, is Java's; `tests/filter/sql_table.jsonl` has what Java made of two thousand expressions.
But for one thing: Java stops reading where an expression could end, and takes `a LIKE 'x'` for `a`, which no message
fulfils; here what follows is an error. NOT binds more tightly than a comparison (`NOT (a = 1)` wants its parentheses),
there is no LIKE, no arithmetic and no escape but `''`, and a comment to the end of a line needs that end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import cache
from typing import TYPE_CHECKING, Any

from gantrymq.errors import ClientError
from gantrymq.filter import expression
from gantrymq.filter.expression import Part, Unfit
from gantrymq.filter.held import HeldFilters
from gantrymq.filter.program import matcher
from gantrymq.protocol.steps import finish

if TYPE_CHECKING:
    from lark import Lark, Token

#: Characters of an expression. Java has no limit; it takes some 50 ms to compile one of this length, in steps.
MAX_LENGTH = 16 * 1024
#: Characters of the compiled expressions that are kept. What is compiled takes fifteen to fifty times as many bytes.
_CACHED_CHARACTERS = 256 * 1024
#: Tokens that are parsed in one step.
_STEP = 100
#: Characters of the expression that an error quotes.
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

#: What is written in place of what SQL92 has here.
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

#: Whether a message with these property bytes (as in its record) is wanted.
SqlFilter = Callable[[bytes], bool]


def compile_sql(text: str) -> SqlFilter:
    """The expression as a function. Raises ClientError, which names the place and what may help."""
    return finish(compile_in_steps(text))


def compile_in_steps(text: str) -> Generator[None, None, SqlFilter]:
    """`compile_sql` in steps of a millisecond. Raises RequestRefused, too: see `HeldFilters`."""
    if len(text) > MAX_LENGTH:
        raise ClientError(f"an SQL92 filter of {len(text)} characters: at most {MAX_LENGTH} are taken")
    known = _compiled.get(text) or _held.get(text)
    if known is None:
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise ClientError(f"an SQL92 filter that is no Unicode text: {e}") from e
        _held.take(text)
        try:
            part = yield from _parse(text)
        except BaseException as e:
            _held.give_back(text)
            if isinstance(e, ClientError):
                _compiled[text] = str(e)
            raise
        known = _held.get(text)
        if known is None:
            known = _held.add(text, matcher(part.program, part.look_ups))
        else:
            # Somebody else has compiled it meanwhile.
            _held.give_back(text)
        _compiled[text] = known
    elif isinstance(known, str):
        raise ClientError(known)
    return known


class _Compiled(dict[str, SqlFilter | str]):
    """What is compiled by now: the function, or what is wrong with the text.

    Those that were compiled the longest ago make room (`SelectorParser.PARSE_CACHE` has 100).
    """

    characters = 0

    def __setitem__(self, text: str, compiled: SqlFilter | str) -> None:
        if text not in self:
            self.characters += len(text)
        super().__setitem__(text, compiled)
        while self.characters > _CACHED_CHARACTERS:
            oldest = next(iter(self))
            self.characters -= len(oldest)
            del self[oldest]


_compiled = _Compiled()
_held: HeldFilters[SqlFilter] = HeldFilters()


def parse_sql(text: str) -> Part:
    """The expression as a condition of three values. Raises ClientError."""
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
    """An `Unfit`, and the place in the text."""

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
    """Made when the first filter comes: lark takes 40 ms to load, which a broker without one doesn't wait for."""
    from lark import Lark, Token, Transformer

    class Builder(Transformer[Token, Part]):
        """Makes parts of the grammar's rules, while the text is parsed: there is no tree, and nothing recurses."""

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
        # An ASCII name: no other letter becomes one of these.
        token.type = _KEYWORDS.get(token.upper(), "NAME")
        return token

    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=Builder(), lexer_callbacks={"NAME": keyword})
