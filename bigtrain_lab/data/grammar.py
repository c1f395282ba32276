"""A small grammar of English sentences that say how two names are related, or only seem to.

    sentence = opening, clauses, ending        clause = subject, verb phrase, object; or the object
                                               first

Every relation is said in many ways, in either order. "~" stands where an adverb or "never" may
stand. What a sentence says of a pair is not told by its words alone: an opening may deny the clause
behind it ("it is untrue that") or deny a doubt of it ("nobody doubts that"), two denials are none,
further clauses speak of other names, and a list says several things of one subject. All names are
made up: two words each, so that a name never met is made of words that were.
"""

from typing import NamedTuple


class Relation(NamedTuple):
    """What a subject is to an object. `kinds`: of subject and object. `forward`: what stands
    between them. `inverse`: clauses that name the object {o} before the subject {s}."""

    name: str
    kinds: tuple[str, str]
    forward: tuple[str, ...]
    inverse: tuple[str, ...]


RELATIONS = (
    Relation(
        "works-for",
        ("person", "firm"),
        (
            "~ worked for",
            "was ~ hired by",
            "was ~ paid by",
            "~ joined",
            "~ served on the staff of",
            "~ took a post at",
        ),
        (
            "{o} ~ employed {s}",
            "{o} ~ hired {s}",
            "among the staff of {o} was ~ {s}",
            "{o} ~ took on {s}",
        ),
    ),
    Relation(
        "lives-in",
        ("person", "place"),
        ("~ lived in", "~ had a house in", "~ moved to", "~ settled in", "was ~ at home in"),
        ("{o} was ~ home to {s}", "in {o} ~ lived {s}", "{o} ~ had {s} among its people"),
    ),
    Relation(
        "founded",
        ("person", "firm"),
        ("~ founded", "~ set up", "~ started", "was ~ the founder of", "~ gave birth to"),
        (
            "{o} was ~ founded by {s}",
            "{o} was ~ started by {s}",
            "{o} ~ had {s} as its founder",
            "{o} was ~ set up by {s}",
        ),
    ),
    Relation(
        "born-in",
        ("person", "place"),
        ("was ~ born in", "was ~ a native of", "~ came into the world in", "~ came from"),
        ("{o} was ~ the birthplace of {s}", "in {o} was ~ born {s}", "{o} ~ had {s} as a native"),
    ),
    Relation(
        "owns",
        ("firm", "firm"),
        ("~ owned", "~ bought", "~ took over", "was ~ the owner of", "~ controlled"),
        (
            "{o} was ~ owned by {s}",
            "{o} ~ belonged to {s}",
            "{o} was ~ bought by {s}",
            "{o} ~ had {s} as its owner",
        ),
    ),
    Relation(
        "parent-of",
        ("person", "person"),
        ("was ~ the mother of", "was ~ the father of", "~ raised", "~ had a child called"),
        ("{o} was ~ the child of {s}", "{o} was ~ raised by {s}", "{o} was ~ born to {s}"),
    ),
    Relation(
        "based-in",
        ("firm", "place"),
        ("was ~ based in", "~ had its seat in", "~ moved to", "~ had its offices in"),
        ("{o} was ~ the seat of {s}", "{o} was ~ home to {s}", "in {o} was ~ based {s}"),
    ),
    Relation(
        "taught",
        ("person", "person"),
        ("~ taught", "was ~ the teacher of", "~ trained", "~ had a student called"),
        ("{o} was ~ taught by {s}", "{o} was ~ a student of {s}", "{o} ~ learned from {s}"),
    ),
    Relation(
        "part-of",
        ("place", "place"),
        ("was ~ part of", "~ belonged to", "was ~ a quarter of", "~ lay within"),
        ("{o} ~ included {s}", "part of {o} was ~ {s}", "{o} ~ had a quarter called {s}"),
    ),
    Relation(
        "succeeded",
        ("person", "person"),
        ("~ succeeded", "~ took over from", "was ~ the successor of", "~ followed"),
        ("{o} was ~ succeeded by {s}", "{o} ~ made way for {s}", "{o} ~ had {s} as successor"),
    ),
)
NONE = "no relation"
CLASSES = (NONE, *(f"{r.name}({order})" for r in RELATIONS for order in ("e1,e2", "e2,e1")))

ASSERT = (
    "",
    "",
    "",
    "it is true that",
    "nobody doubts that",
    "no record denies that",
    "we know that",
    "it is said that",
)
DENY = (
    "it is untrue that",
    "nobody says that",
    "no record shows that",
    "we doubt that",
    "it is false that",
)
ADVERBS = ("", "", "", "once", "indeed", "later", "always")
NEVER = "never"
JOINTS = (", and", ", but", ", while", "; besides ,", ", whereas")
ENDINGS = ("", "", "in those years", "as letters show", "against all advice", "at last")
RELATIVE = {"person": "who", "firm": "which", "place": "which"}

NAMES = {  # kind -> first words, second words
    "person": (
        (
            "Alda Bero Cilla Doran Edda Faro Gisla Hanno Ilva Joris Kaia Lemo Mirta Nilo Orla Pavo"
            " Quira Runa Silvo Tilda Urso Vera Wilko Xenia Yaro Zita Anselm Birte Cosmo Dagny"
            " Emeric Fenja Gorm Hella Irma Jonte Ketil Lioba Marten Nanna Otmar Petra"
        ).split(),
        (
            "Abbing Brenk Corvin Dahlke Elster Fenn Garlow Holt Imken Jarn Kessel Lorre Munk"
            " Norrick Oster Pell Quast Rieger Sorn Tamm Ulmer Vogt Wessel Yorck Zander Albers"
            " Brandis Cramm Detmer Ebeling Fabri Gerdes"
        ).split(),
    ),
    "firm": (
        (
            "Arvex Boreal Calyx Dunar Elmo Fintra Gralo Hexan Indro Joltra Kelvar Lumen Mondra"
            " Nexal Optra Pyrel Quorix Rastel Solvia Tandem Urbix Velora Wexal Zentra"
        ).split(),
        (
            "Works Bank Press Lines Mills Foods Motors Labs Glass Records Tools Tea Ships Wines"
            " Bikes Clocks Paper Steel Toys Games"
        ).split(),
    ),
    "place": (
        "Upper Lower New Old Great Little North South East West Saint Port Fort Mount Lake Inner"
        " Outer High".split(),
        (
            "Ambria Belden Carrow Dorne Eschel Farrun Gildow Harle Issel Jurra Korbin Lauden Marl"
            " Nessa Ostrow Penzil Quellin Rodau Selwig Torvik Ulfen Varn Wesk Zallin Brill Cortane"
            " Dravik Ellwang"
        ).split(),
    ),
}
