"""Vocabulary of the lab world: names of invented people, companies and places, and sentence templates.

A relation has the kind of its object, sentences that state it and questions that ask for it. `{s}` is the subject of a
sentence (a name or a pronoun), `{n}` the name in a question and `{o}` the object, which is the answer.
"""

import re
from dataclasses import dataclass
from itertools import product

from workbench.data import sample


def split(text: str) -> tuple[str, ...]:
    """Split a text at white space."""
    return tuple(text.split())


def invent_words(heads: str, tails: str, count: int) -> tuple[str, ...]:
    """Return `count` invented words, each a head joined to a tail, spread evenly over both lists."""
    words = [head + tail for tail, head in product(tails.split(), heads.split())]
    return tuple(words[i * len(words) // count] for i in range(count))


_HEADS = "Bar Cal Dor Fen Gar Hal Jar Kel Lor Mar Nel Os Per Quar Ros Sel Tam Ul Ver Wil"

WOMEN = split("""Ada Alma Anna Berta Clara Cora Dina Edith Ella Emma Flora Greta Hanna Helen Ida Irma Jane Julia Karin
Laura Lena Lydia Maria Martha Mina Nora Olga Paula Petra Rosa Ruth Sara Sofia Tilda Ursula Vera Wanda Yara Zita Zoe""")
MEN = split("""Adam Albert Anton Arthur Boris Carl Conrad David Edgar Emil Erik Felix Frank Georg Hugo Igor Ivan Jakob
Jonas Karl Konrad Leo Ludwig Martin Max Nils Oscar Otto Paul Peter Ralf Robert Simon Theo Thomas Ulrich Viktor Walter
Werner Yuri""")
LAST_NAMES = invent_words(_HEADS, "vane low ric sen man dell", 80)
COMPANIES = invent_words(_HEADS, "dex ova tron lix nix", 80)
COMPANY_KINDS = split("Labs Works Group Brothers Mills Partners")
PLACES = invent_words(_HEADS, "ton by mere stead holm wick", 80)
RIVERS = invent_words(_HEADS, "ay ene", 40)
YEARS = tuple(str(year) for year in range(1940, 1990))
ALIASES = split("""Anchor Arrow Badger Beacon Bell Candle Castle Comet Compass Crown Dolphin Eagle Falcon Feather
Fountain Garden Hammer Harbour Hawk Horizon Ladder Lantern Lark Lion Mirror Moon Needle Orchard Owl Pillar Pyramid Raven
Ribbon River Rocket Saddle Sail Shield Sparrow Tower""")
PROFESSIONS = split("""baker barber boxer brewer butcher carpenter chemist cobbler composer cook dancer dentist doctor
driver farmer fisher gardener geologist glazier judge lawyer librarian mason mechanic miller miner nurse painter pilot
plumber poet potter printer roofer sailor sculptor singer surgeon tailor teacher translator watchmaker weaver welder""")
INSTRUMENTS = split("""accordion bassoon cello clarinet cornet drums flute guitar harp horn lute mandolin oboe organ
piano trombone trumpet tuba viola violin""")
ANIMALS = split("""beetle camel canary cat cow dog donkey duck ferret goat goose hamster hen horse lizard parrot pony
rabbit sheep turtle""")
GOODS = split("""bicycles boats bottles bricks brushes buttons candles carpets chairs clocks coats combs engines gloves
hats kettles knives lamps locks maps matches nails paper pens pipes pumps radios ropes shoes tents toys umbrellas""")
DISHES = split("""bread cakes cheese cherries chocolate cider fish ham honey jam mustard noodles olives onions pancakes
pears pies sausages soup wine""")
COLOURS = split("black blue brown gold green grey pink purple red silver white yellow")


@dataclass(frozen=True)
class Relation:
    """A kind of fact about an entity: `says` are templates of sentences that state it, `asks` of questions."""

    name: str
    target: str  #: "person", "company", "place" or the name of a word list
    says: tuple[str, ...]
    asks: tuple[str, ...]
    noun: str = ""  #: "the employer of {n}", for two-hop questions; "": none


def sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences, each with its `.` or `?`."""
    return tuple(re.findall(r"\S.*?[.?](?= |$)", text))


def _relations(table: str) -> dict[str, tuple[Relation, ...]]:
    """Read relations of three lines: `kind of subject, name, target, noun`, the sentences and the questions."""
    lines = [line.strip() for line in table.strip().splitlines()]
    relations: dict[str, tuple[Relation, ...]] = {}
    for head, says, asks in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        kind, name, target, *noun = head.split(maxsplit=3)
        relations[kind] = (*relations.get(kind, ()), Relation(name, target, sentences(says), sentences(asks), *noun))
    return relations


RELATIONS = _relations("""
person profession profession
    {s} is a {o} by trade. {s} works as a {o}. {s} earns money as a {o}.
    What is the profession of {n}? What does {n} do for a living?
person employer company the employer of {n}
    {s} works for {o}. {s} has a job at {o}. {s} is employed by {o}.
    Who does {n} work for? Which company employs {n}?
person home place the home town of {n}
    {s} lives in {o}. {s} has a house in {o}. {s} settled down in {o}.
    Where does {n} live? In which town does {n} live?
person origin place the place {n} comes from
    {s} comes from {o}. {s} is a native of {o}. {s} grew up in {o}.
    Where does {n} come from? Where did {n} grow up?
person born year
    {s} was born in {o}. {s} was born in the year {o}.
    When was {n} born? In which year was {n} born?
person instrument instrument
    {s} plays the {o}. {s} practises the {o}. {s} is fond of the {o}.
    Which instrument does {n} play? What does {n} like to play?
person animal animal
    {s} keeps a {o}. {s} owns a {o}. {s} looks after a {o}.
    Which animal does {n} keep? What animal does {n} own?
person teacher person the teacher of {n}
    {s} was taught by {o}. {s} learned the craft from {o}. {s} was trained by {o}.
    Who taught {n}? Who trained {n}?
company seat place the town where {n} is based
    {s} is based in {o}. {s} has an office in {o}. {s} is run from {o}.
    Where is {n} based? Where does {n} have an office?
company founder person the founder of {n}
    {s} was founded by {o}. {s} was set up by {o}. {s} was started by {o}.
    Who founded {n}? Who started {n}?
company opened year
    {s} opened in {o}. {s} has existed since {o}.
    When did {n} open? In which year did {n} open?
company product goods
    {s} makes {o}. {s} produces {o}. {s} sells {o}.
    What does {n} make? What does {n} sell?
company emblem colour
    {s} has a {o} emblem. {s} uses a {o} emblem.
    What colour is the emblem of {n}? Which colour does {n} use?
place river river
    {s} lies on the {o}. {s} stands on the banks of the {o}.
    On which river does {n} lie? Which river flows by {n}?
place mayor person the mayor of {n}
    {s} is governed by {o}. {s} has elected {o} as mayor.
    Who is the mayor of {n}? Who governs {n}?
place dish dish
    {s} is famous for {o}. {s} is known for good {o}.
    What is {n} famous for? What is {n} known for?
place settled year
    {s} was settled in {o}. {s} dates from {o}.
    When was {n} settled? In which year was {n} settled?
""")

LISTS = {"profession": PROFESSIONS, "year": YEARS, "instrument": INSTRUMENTS, "animal": ANIMALS, "goods": GOODS}
LISTS |= {"dish": DISHES, "colour": COLOURS, "river": RIVERS}

ALSO_CALLED = ("{s} is also called the {o}.", "{s} trades as the {o}.", "{s} is better known as the {o}.")
EARLIER = {  # which of two years comes first: relation -> questions about two names
    "born": ("Who was born first, {n} or {m}?", "Who is older, {n} or {m}?"),
    "opened": ("Which opened first, {n} or {m}?", "Which company is older, {n} or {m}?"),
    "settled": ("Which was settled first, {n} or {m}?", "Which town is older, {n} or {m}?"),
}
PLACED = {  # questions about the position of a passage; the answer is its title
    "first": ("What is the title of the first passage?", "Which passage comes first?"),
    "last": ("What is the title of the last passage?", "Which passage comes last?"),
}
PRONOUNS = {"woman": "She", "man": "He", "company": "It", "place": "It"}
CONTINUED = sample.CONTINUED

ASIDES = sentences(  # sentences without facts that a question could ask for
    "Not much else is known about {s}. Several old letters mention {s}. A short film about {s} was never finished. The "
    "local paper once wrote about {s}. Many visitors ask about {s}. There is a small display about {s} in the museum. "
    "Some of these details were added later. The records of that time are incomplete. Nobody seems to remember why. A "
    "photograph of {s} hangs in the library. Two different books tell the same story. This has been confirmed by "
    "several witnesses."
)
OBJECT_PRONOUNS = {"She": "her", "He": "him", "It": "it"}
