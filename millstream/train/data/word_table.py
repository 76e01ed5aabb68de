"""Table from English to Brook's words: `millstream/models/brook/words.txt`, made of WordNet and of lists here.

    python -m millstream.train.data.word_table

A word gets a target by its most common meanings alone, and only where that lies under one of a few meanings
named here, so that a bank, a bass and a crane stay what they are: not understood. What is common and what
WordNet has no place for is by hand. A wrong target is worse than none.
"""

from __future__ import annotations

import argparse
import random
import re
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from millstream.core.files import Staging
from millstream.models.brook.text import words
from millstream.models.brook.word_table import MAX_WORDS, PATH
from millstream.train.data.captions import COLOUR_PHRASES, SIZE_PHRASES, VERBS, WORDS
from millstream.train.data.wordnet import FOLDER, PARTS, Part, Sense, SynsetId, WordNet, read_wordnet

MIN_NAME = 4
"""Fewest letters of a place's name: shorter ones are too often something else."""

ROOTS: Mapping[str, str] = {
    "balloon": "lighter-than-air_craft.noun.1 balloon.noun.1",
    "boat": "vessel.noun.2 boat.noun.1 ship.noun.1 raft.noun.1",
    "bird": "bird.noun.1",
    "fish": "fish.noun.1",
    "lantern": "lantern.noun.1",
    "kite": "kite.noun.3",
    "comet": "comet.noun.1 meteoroid.noun.1 meteor.noun.2 meteorite.noun.1 asteroid.noun.1",
    "train": "train.noun.1 locomotive.noun.1 railcar.noun.1 streetcar.noun.1",
    "whale": "cetacean.noun.1",
    "plane": "airplane.noun.1 heavier-than-air_craft.noun.1 glider.noun.1",
    "jellyfish": "jellyfish.noun.1 jellyfish.noun.2 medusa.noun.2",
    "umbrella": "umbrella.noun.1",
    "hills": "hill.noun.1 mountain.noun.1 mountain_range.noun.1 mountain_peak.noun.1 highland.noun.1 valley.noun.1",
    "meadow": "grassland.noun.1 meadow.noun.1",
    "sea": "sea.noun.1 lake.noun.1 bay.noun.1 gulf.noun.1 seashore.noun.1 shore.noun.1 beach.noun.1",
    "ocean": "ocean.noun.1",
    "waves": "wave.noun.1",
    "desert": "desert.noun.1",
    "sand dunes": "dune.noun.1",
    "city": "city.noun.1",
    "town": "town.noun.1 village.noun.2 village.noun.1",
    "forest": "forest.noun.1 forest.noun.2 tree.noun.1 grove.noun.1",
    "space": "outer_space.noun.1 galaxy.noun.3 star.noun.1 star.noun.3 planet.noun.1 planet.noun.3 "
    "constellation.noun.2 nebula.noun.3",
    "cosmos": "cosmos.noun.1",
    "dawn": "dawn.noun.1",
    "noon": "noon.noun.1",
    "daylight": "daylight.noun.1 daylight.noun.2",
    "dusk": "dusk.noun.1",
    "sunset": "sunset.noun.1",
    "evening": "evening.noun.1",
    "night": "night.noun.1",
    "midnight": "midnight.noun.1",
    "moonlight": "moonlight.noun.1",
    "rain": "rain.noun.1 rain.noun.2 storm.noun.1",
    "snow": "snow.noun.1 snow.noun.2 blizzard.noun.1",
    "snowflakes": "snowflake.noun.1",
    "fog": "fog.noun.1 fog.noun.2 haze.noun.1 smog.noun.1",
    "mist": "mist.noun.1",
    "aurora": "aurora.noun.2",
    "red": "red.noun.1 red.adj.1",
    "orange": "orange.noun.2 orange.adj.1",
    "yellow": "yellow.noun.1 yellow.adj.1",
    "green": "green.noun.1 green.adj.1",
    "blue": "blue.noun.1 blue.adj.1",
    "purple": "purple.noun.1 purple.adj.1",
    "pink": "pink.noun.1 pink.adj.1",
    "white": "white.noun.2 white.adj.1",
    "large": "large.adj.1 big.adj.1",
    "small": "small.adj.1 little.adj.1",
    "slowly": "slow.adj.1 slowly.adv.1",
    "gently": "gently.adv.1",
    "fast": "fast.adj.1 fast.adv.1 rapid.adj.2",
    "quickly": "quickly.adv.1",
    "drifting": "float.verb.1 glide.verb.2",
    "gliding": "glide.verb.1",
    "rising": "rise.verb.1 soar.verb.3",
    "climbing": "climb.verb.1",
    "falling": "fall.verb.1 fall.verb.2",
    "descending": "descend.verb.1",
    "circling": "circle.verb.1 circle.verb.2 orbit.verb.1 revolve.verb.1 spin.verb.1",
    "looping": "loop.verb.1",
    "bobbing": "bob.verb.1",
    "swaying": "sway.verb.1 sway.verb.2",
    "moving": "travel.verb.1",
}
"""Meanings that stand for a target with all that lies under them; of several roots the nearest one's."""

STOPS = (
    "submersible.noun.2 sandstorm.noun.1 "  # not a boat that one sees; no rain
    "ice_storm.noun.1 parachute.noun.1 "
    "poultry.noun.1"
)
"""Meanings under a root that have no target, nor what lies under them."""

SEEN_THROUGH: Mapping[str, frozenset[int]] = {
    "bird": frozenset({13}), "fish": frozenset({13}), "forest": frozenset({27}),
}  # fmt: skip
"""Files of WordNet whose senses do not count against a target: a trout is a dish as well, an oak is a wood."""

SEEN_OTHERWISE: Mapping[str, frozenset[int]] = {"forest": frozenset({13})}
"""Files of WordNet whose senses count more than all: who says peach thinks of the fruit, not of its tree."""

NOUNS_BY_HAND: Mapping[str, str] = {
    "balloon": "balloon blimp zeppelin dirigible airship hot_air_balloon",
    "sailboat": "sailboat",
    "boat": "boat vessel ship yacht dinghy schooner catamaran raft canoe kayak ferry steamer tanker freighter galleon "
    "frigate rowboat speedboat motorboat powerboat tugboat lifeboat steamboat riverboat houseboat longboat gondola barge "
    "ocean_liner cruise_ship cruise_liner pirate_ship cargo_ship container_ship "
    "fishing_boat fishing_vessel paper_boat rowing_boat sail_boat row_boat steam_ship viking_ship ferry_boat ferryboat "
    "junk_ship watercraft",
    "sailing boat": "sailing_ship sailing_vessel tall_ship",
    "bird": "bird songbird gull seagull eagle swallow crow raven dove pigeon robin sparrow hawk falcon goose duck "
    "heron stork penguin owl parrot peacock albatross pelican hummingbird humming_bird kingfisher cardinal finch "
    "blackbird phoenix chicken turkey",
    "fish": "fish trout carp minnow shoal_of_fish school_of_fish",
    "lantern": "lantern lamp torch candle lamplight streetlight street_light streetlamp street_lamp lamppost lamp_post "
    "lightbulb light_bulb flashlight sky_lantern floating_lantern",
    "blue bird": "bluebird blue_jay bluejay",
    "pink bird": "flamingo",
    "white bird": "swan",
    "orange fish": "goldfish clownfish koi",
    "kite": "kite",
    "comet": "comet meteor meteorite asteroid falling_star fireball meteoroid",
    "train": "train locomotive tram trolley streetcar subway railway railroad monorail steam_engine steam_locomotive "
    "bullet_train freight_train railcar tramway",
    "whale": "whale orca dolphin porpoise narwhal beluga humpback",
    "plane": "plane aeroplane airliner jet aircraft biplane glider helicopter jetliner seaplane warplane",
    "paper plane": "paper_aeroplane paper_jet",
    "jellyfish": "jellyfish jellyfishes man_of_war medusae",
    "umbrella": "umbrella parasol sunshade brolly",
    "hills": "hill mountain valley highland ridge cliff mountainside hillside hilltop peak mountaintop alp plateau canyon "
    "countryside foothill knoll vale glen volcano",
    "meadow": "meadow prairie grassland pasture field farmland grass lawn wildflower savanna savannah steppe garden park",
    "sea": "sea lake bay beach shore seaside coast coastline seashore lagoon harbor harbour seascape fjord gulf cove surf "
    "coral_reef reef",
    "ocean": "ocean underwater atlantic_ocean pacific_ocean",
    "waves": "wave breaker ripple seawater tide whitecap",
    "desert": "desert oasis wasteland badland",
    "sand dunes": "dune sand_dune sandhill",
    "city": "city metropolis megacity street avenue boulevard downtown cityscape suburb megalopolis big_city",
    "city skyline": "skyline cityscape",
    "tall buildings": "skyscraper high_rise highrise office_tower",
    "buildings": "building",
    "town": "town village hamlet townscape",
    "forest": "forest tree jungle grove woodland rainforest orchard thicket wood_land",
    "pine trees": "pine pine_tree fir fir_tree spruce conifer evergreen pinewood",
    "space": "galaxy galaxies star planet nebula nebulae constellation starfield milky_way solar_system deep_space universe "
    "starscape stardust supernova",
    "moonlight": "moon moonbeam full_moon crescent_moon",
    "dawn": "daybreak sunup first_light crack_of_dawn",
    "early morning": "morningtide",
    "noon": "midday noontime noonday",
    "daylight": "daytime afternoon sunlight sunshine sun sunbeam",
    "dusk": "twilight nightfall gloaming",
    "sunset": "sundown",
    "evening": "eventide",
    "night": "nighttime night_time darkness",
    "rain": "storm downpour drizzle rainfall raindrop thunderstorm rainstorm hurricane typhoon cyclone tempest deluge "
    "cloudburst monsoon thunder lightning sprinkle puddle rain_shower rain_storm thunder_storm",
    "shower": "shower",
    "snow": "snowfall blizzard snowstorm sleet winter frost snowdrift snow_storm flurry snowfield glacier ice",
    "snowflakes": "snowflake",
    "fog": "haze smog murk smoke",
    "mist": "mist vapor vapour",
    "aurora": "aurora polar_light southern_light northern_light",
}  # fmt: skip
"""Nouns that get their target whatever WordNet says, and so do their plurals."""

VERBS_BY_HAND: Mapping[str, str] = {
    "drifting": "drift float sail cruise waft hover fly wander meander roam flow",
    "gliding": "glide slide skim coast",
    "travelling": "travel journey voyage",
    "rising": "rise soar ascend levitate lift",
    "climbing": "climb",
    "falling": "fall drop sink plummet plunge tumble dive",
    "descending": "descend",
    "circling": "circle orbit spin whirl rotate revolve twirl swirl spiral gyrate",
    "looping": "loop",
    "bobbing": "bob bounce",
    "swaying": "sway rock swing wobble",
    "moving": "move swim run walk",
}
"""Base forms; all forms of theirs get the target's."""

WORDS_BY_HAND: Mapping[str, str] = {
    "aurora": "auroral aurora_borealis aurora_australis",
    "dawn": "sunrises dawning",
    "day": "days daily",
    "night": "nights nightly nocturnal nighttimes starry starlit starlight",
    "moonlight": "moonlit moonshine",
    "daylight": "daylit sunlit",
    "dusk": "twilit",
    "sunset": "sunsets",
    "evening": "evenings",
    "clear weather": "sunny cloudless fair_weather good_weather nice_weather sunny_weather blue_sky",
    "rainy": "stormy drizzly showery rainswept raining rained pouring wet_weather bad_weather",
    "snowy": "wintry snowing snowbound snowcapped snow_capped icy frosty frozen snowed",
    "foggy": "misty hazy foggily smoggy smoky murky",
    "grassy": "grassy",
    "red": "ruby maroon burgundy vermilion vermillion cherry carmine blood_red brick_red dark_red bright_red deep_red "
    "light_red reddish wine_red cardinal_red",
    "orange": "tangerine apricot coral peach copper rust orangish dark_orange bright_orange light_orange burnt_orange",
    "yellow": "gold mustard blond blonde yellowish saffron canary dark_yellow bright_yellow light_yellow",
    "green": "lime olive jade mint greenish chartreuse dark_green bright_green light_green forest_green sea_green "
    "lime_green deep_green",
    "blue": "turquoise navy cyan cobalt sapphire teal indigo aqua aquamarine bluish cerulean ultramarine dark_blue bright_blue "
    "light_blue deep_blue sky_blue navy_blue baby_blue royal_blue midnight_blue ocean_blue",
    "purple": "lavender lilac mauve plum magenta purplish amethyst dark_purple bright_purple light_purple deep_purple",
    "pink": "fuchsia salmon_pink rosy pinkish hot_pink dark_pink bright_pink light_pink baby_pink",
    "white": "snow_white cream silver silvery pearl whitish alabaster off_white bright_white",
    "large": "larger largest bigger biggest enormous giant gigantic massive immense vast colossal great mighty oversized",
    "small": "smaller smallest littler mini miniature minuscule petite teeny teensy toy tinier tiniest wee",
    "slowly": "slow slower leisurely unhurriedly lazy",
    "fast": "faster fastest swift speedy rapid quick quicker",
    "quickly": "rapidly speedily hurriedly hastily",
    "gently": "gentle softly calmly quietly peacefully serenely",
    "two": "2 pair couple duo",
    "three": "3 trio threesome",
}  # fmt: skip
"""Words that are taken as they are written here."""

ATTRIBUTES = frozenset(
    phrase for phrases in (COLOUR_PHRASES, SIZE_PHRASES) for values in phrases.values() for phrase in values
)
"""Words that say how a thing looks."""

STOP_WORDS = """
the a an this that these those some any each every both all such same other another only just also too very
quite rather really so as if then than there here where when while what which who whom whose how why i me my
mine we us our you your he him his she her it its they them their and or but yet of in on at to from by for
with within into onto upon over under beneath above below between among amid across through along around
about against toward towards near beside besides behind before after during until till since off out up down
again once ever always still is are was were be been being am do does did done has have had having will
would shall should can could may might must let lets get gets make makes show shows showing see sees seeing
please want like as well s t d m ll re ve o while whilst amongst atop inside outside next front back side
top bottom left right middle center centre scene video clip picture image view shot footage film movie
animation 1 one single
"""
"""Words without content, or that say it is a video: neither a word of Brook's nor reported. Not "no" and
"without", which it would be wrong to be silent about."""

REFUSED = """
accost approach boomerang felicitate formicate greet intumesce lag maunder elapse emanate precess sift jostle outflank
outpoint debouch overstep escort encroach tittup outdistance overhaul unhorse dismount submerse submerge
pounce pop retrograde twiddle nutate scend anthill molehill formicary ben hammock flume seamount scooter hoy
gig landfall firestorm windstorm whirlwind tornado twister supertwister waterspout dust_devil soaker pelter
kamikaze hydroplane eggbeater skyhook interceptor dinky dinkey commuter flatbed white_horse devilfish
sea_wolf natural_order macrocosm bumper_to_bumper long_play long_playing instantaneous puffy heroic bouffant
plumping crud samba blackjack montezuma flamboyant ash bull_s_eye bleach torrent narrow_body wide_body
delta_wing tin_can outboard grubby whine arbor order
"""
"""Words that WordNet gives a wrong target: found by looking."""


class Forms:
    """Inflected forms of words."""

    def __init__(self, wordnet: WordNet) -> None:
        self._irregular = wordnet.irregular

    def plurals(self, name: str) -> tuple[str, ...]:
        """Return the plurals of a word; of a phrase, its last word's."""
        *first, last = name.split()
        found = self._irregular["noun"].get(last)
        if found is None:
            if last.endswith(("fish", "craft")):
                found = (last + "es",) if last.endswith("fish") else ()
            elif re.search(r"(s|x|z|ch|sh)$", last):
                found = (last + "es",)
            elif re.search(r"[^aeiou]y$", last):
                found = (last[:-1] + "ies",)
            else:
                found = (last + "s",)
        return tuple(" ".join((*first, form)) for form in found)

    def verb(self, base: str) -> tuple[str, tuple[str, ...]]:
        """Return the form in -s, and all others."""
        if re.search(r"(s|x|z|ch|sh|o)$", base):
            third = base + "es"
        elif re.search(r"[^aeiou]y$", base):
            third = base[:-1] + "ies"
        else:
            third = base + "s"
        irregular = self._irregular["verb"].get(base, ())
        stem = base[:-1] if base.endswith("e") and not base.endswith(("ee", "oe", "ye")) else base
        going = [form for form in irregular if form.endswith("ing")] or [stem + "ing"]
        past = [form for form in irregular if not form.endswith("ing") and form != third]
        if not past:
            past = [base[:-1] + "ied" if re.search(r"[^aeiou]y$", base) else stem + "ed"]
        return third, (base, *going, *past)


def build(wordnet: WordNet, vocabulary: Iterable[str] = WORDS) -> dict[str, str]:
    """Return the target of every name, a word or several with blanks between; "" where it has no content."""
    known = set(vocabulary)
    forms = Forms(wordnet)
    table: dict[str, str] = {}

    def add(name: str, target: str) -> None:
        if not known.issuperset(name.split()):
            table.setdefault(name, target)

    for name in STOP_WORDS.split():
        add(name, "")
    for name, target in _by_hand(forms):
        add(name, target)
    by_hand = set(table)
    concepts = _concepts(wordnet)
    found = dict(_from_wordnet(wordnet, concepts))
    for name, (part, target, is_name) in found.items():
        add(name, target)
        for form, as_target in _inflected(forms, name, part, target, is_name=is_name):
            if not _is_other_word(wordnet, form, found):
                add(form, as_target)
    return {
        name: target
        for name, target in sorted(table.items())
        if name in by_hand or " " not in name or _says_more(name, target, table, known)
    }


def _by_hand(forms: Forms) -> Iterator[tuple[str, str]]:
    for target, names in WORDS_BY_HAND.items():
        for name in names.split():
            yield name.replace("_", " "), target
    for target, names in NOUNS_BY_HAND.items():
        for name in (each.replace("_", " ") for each in names.split()):
            yield name, target
            for form in forms.plurals(name):
                yield form, target
    for target, names in VERBS_BY_HAND.items():
        for name in names.split():
            yield from _verb_forms(forms, name, target)


def _verb_forms(forms: Forms, base: str, target: str) -> Iterator[tuple[str, str]]:
    third, others = forms.verb(base)
    for form in others:
        yield form, target
    yield third, VERBS[target]


def _inflected(
    forms: Forms, name: str, part: Part, target: str, *, is_name: bool
) -> Iterator[tuple[str, str]]:
    if part == "verb":
        yield from _verb_forms(forms, name, target)
    elif part == "noun" and not is_name and target not in COLOUR_PHRASES and " of " not in name:
        for form in forms.plurals(name):
            yield form, target


def _concepts(wordnet: WordNet) -> dict[SynsetId, str]:
    """Return the target of every meaning under a root: breadth first, so the nearest root's; "" stops."""
    found: dict[SynsetId, str] = {wordnet.find(name): "" for name in STOPS.split()}
    waiting = deque(found)
    for target, names in ROOTS.items():
        for name in names.split():
            root = wordnet.find(name)
            found.setdefault(root, target)
            waiting.append(root)
    while waiting:
        place = waiting.popleft()
        for below in wordnet.under(place):
            if below not in found:
                found[below] = found[place]
                waiting.append(below)
    return {place: target for place, target in found.items() if target}


def _from_wordnet(
    wordnet: WordNet, concepts: Mapping[SynsetId, str]
) -> Iterator[tuple[str, tuple[Part, str, bool]]]:
    """Yield each word with a target: its part of speech, the target, and whether it is a name."""
    refused = frozenset(REFUSED.split())
    for lemma in sorted({lemma for part in PARTS for lemma in wordnet.senses[part]}):
        name = " ".join(words(lemma.replace("_", " ")))
        if (
            name.replace(" ", "_") in refused
            or not name
            or len(name.split()) > MAX_WORDS
            or not name.isascii()
        ):
            continue
        found = _decide(wordnet, concepts, lemma)
        if found is None:
            continue
        part, target = found
        is_name = _is_name(wordnet, lemma)
        if is_name is None or (is_name and len(name) < MIN_NAME):
            continue
        if " " in name and (part != "noun" or _is_latin(wordnet, lemma)):
            continue
        yield name, (part, target, is_name)


def _decide(wordnet: WordNet, concepts: Mapping[SynsetId, str], lemma: str) -> tuple[Part, str] | None:
    """Return the target of the first sense of a word's commonest part of speech, where texts do not have its
    other senses more often."""
    senses = {part: wordnet.senses[part][lemma] for part in PARTS if lemma in wordnet.senses[part]}
    part = max(senses, key=lambda each: sum(sense.met for sense in senses[each]))
    target = next((concepts[each.synset] for each in senses[part] if each.synset in concepts), None)
    if target is None:
        return None
    files = {wordnet.synsets[each.synset].file for each in senses[part]}
    if files & SEEN_OTHERWISE.get(target, frozenset()):
        return None

    def counts(sense: Sense) -> bool:
        return wordnet.synsets[sense.synset].file not in SEEN_THROUGH.get(target, ())

    first = next(each for each in senses[part] if counts(each))
    if concepts.get(first.synset) != target:
        return None
    everything = [each for every in senses.values() for each in every if counts(each)]
    met = sum(each.met for each in everything if concepts.get(each.synset) == target)
    return (part, target) if 2 * met >= sum(each.met for each in everything) else None


def _is_latin(wordnet: WordNet, lemma: str) -> bool:
    """True for names of species and of what they are sorted into."""
    first, _, rest = lemma.partition("_")
    nouns = wordnet.senses["noun"]
    return (
        first in ("genus", "family", "order", "class", "suborder", "superfamily", "subclass")
        or f"genus_{first}" in nouns
        or rest.rpartition("_")[2] not in nouns
    )


def _is_name(wordnet: WordNet, lemma: str) -> bool | None:
    """True if all its senses are names, False if none is, None for what is both."""
    spelled = {
        word
        for part in PARTS
        for sense in wordnet.senses[part].get(lemma, ())
        for word in wordnet.synsets[sense.synset].words
        if word.lower() == lemma
    }
    names = {word[:1].isupper() for word in spelled}
    return names.pop() if len(names) == 1 else None


def _is_other_word(wordnet: WordNet, form: str, found: Mapping[str, object]) -> bool:
    """True if an inflected form is a word of its own, without a target."""
    lemma = form.replace(" ", "_")
    return form not in found and any(lemma in wordnet.senses[part] for part in PARTS)


def _says_more(name: str, target: str, table: Mapping[str, str], known: set[str]) -> bool:
    """True if a phrase is to be understood in another way than its words one by one. One with a colour or a
    size is not: a red one stays red, and who writes blue cat does not mean the catfish."""
    *others, head = (word if word in known else table.get(word) for word in name.split())
    if ATTRIBUTES.intersection(others):
        return False
    return head != target or any(other not in ("", target) for other in others)


HEADER = """\
# English to Brook's words, as "target: names"; the blanks of a name are underscores; no target, no content.
# Written by `python -m millstream.train.data.word_table`; not to be edited. Derived from WordNet 3.0,
# Copyright 2006 by Princeton University, whose licence is in words.LICENSE beside this file.
"""


def as_text(table: Mapping[str, str]) -> str:
    by_target: dict[str, list[str]] = {}
    for name, target in table.items():
        by_target.setdefault(target, []).append(name.replace(" ", "_"))
    blocks = [
        textwrap.fill(f"{target}: {' '.join(names)}", 110, subsequent_indent="  ", break_on_hyphens=False)
        for target, names in sorted(by_target.items())
    ]
    return "\n\n".join((HEADER.strip(), *blocks)) + "\n"


def sample(table: Mapping[str, str], count: int, seed: int) -> list[str]:
    """Rows to be looked at: some of those with content."""
    rows = [f"{name} -> {target}" for name, target in table.items() if target]
    return random.Random(seed).sample(rows, count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wordnet", type=Path, default=FOLDER, help="folder of WordNet 3.0's files")
    parser.add_argument("--sample", type=int, metavar="N", help="print N rows to look at, and write nothing")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    table = build(read_wordnet(options.wordnet))
    if options.sample:
        print("\n".join(sample(table, options.sample, options.seed)))
        return
    text = as_text(table)
    with Staging(PATH.parent) as staging:
        staging.path(PATH.name).write_text(text, encoding="utf-8")
    print(f"{PATH}: {len(table)} names, {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
