#!/usr/bin/env python3
"""Writes the generated part of datasets/text: articles on an invented country, and passages.jsonl.

    python3 tools/make-text.py

essays.txt, languages.txt and code.txt beside them are written by hand. All of it is our own. The
output depends on this file only: one seed, and no random call but random(), which Python keeps.
"""
import itertools
import json
import random
import re
from pathlib import Path

OUT = Path(__file__).resolve().parent.parent / "datasets" / "text"


class Dice:
    def __init__(self, seed):
        self.random = random.Random(seed).random

    def between(self, low, high):
        return low + int(self.random() * (high - low + 1))

    def pick(self, options):
        return options[self.between(0, len(options) - 1)]

    def shuffled(self, options):
        rest, out = list(options), []
        while rest:
            out.append(rest.pop(self.between(0, len(rest) - 1)))
        return out


class Deck:
    """Deals cards in random order; every card once before any comes again."""

    def __init__(self, dice, cards):
        self.dice, self.cards, self.left = dice, cards, []

    def deal(self):
        if not self.left:
            self.left = self.dice.shuffled(self.cards)
        return self.left.pop()


dice = Dice(20240611)
decks = {}


def deal(name):
    if name not in decks:
        decks[name] = Deck(dice, WORDS[name])
    return decks[name].deal()


def expand(template, facts):
    def value(match):
        word = match.group(1)
        number = re.fullmatch(r"n(,?):(\d+)-(\d+)", word)
        if number:
            return f"{dice.between(int(number[2]), int(number[3])):{number[1]}}"
        return expand(deal(word[1:]), facts) if word[0] == "=" else str(facts[word])

    return re.sub(r"\{([^{}]+)\}", value, template)


def fill(template, **facts):
    """Replaces {fact}, {n:LOW-HIGH} (a number), {n,:LOW-HIGH} (with commas) and {=deck} (a card)."""
    text = expand(template, facts)
    text = re.sub(r"\b([Aa]) (?=[aeiou](?!ne\b|ni|se|u))", r"\1n ", text)
    return re.sub(r"^[a-z]|(?<=[.!?] )[a-z]", lambda letter: letter[0].upper(), text)


WORDS = {
    "river": ["Marrow", "Tilling", "Quen", "Brandle", "Vare", "Long Ash", "Sill", "Hark", "Ullow", "Penny Water",
              "Ember", "Sorrel"],
    "region": ["the Vale of Harrow", "the Salt Marshes", "the Upper Moors", "the Ten Parishes", "the Copper Hills",
               "the Eastern Fens", "the Windward Shires", "the Low Downs"],
    "town": ["Harrowmere", "Tillingford", "Osk", "Brandlesea", "Lower Quenby", "Wexholt", "Marrowdale", "Sillgate",
             "Penny Cross", "Ashby Fold", "Varemouth", "Hark's Landing", "Ullowick", "Emberton", "Sorrelby",
             "Great Dunmoor", "Little Dunmoor", "Corvale", "Thistle Bay", "Northam Weir", "Candlewick", "Stonebeck",
             "Yarrow Hythe", "Mossley End", "Pelham Stairs", "Rookhurst", "Saltonstall Quay", "Fenwater",
             "Kettlebridge", "Bramblecote", "Drovers' Rest", "Inchmarsh", "Copperlow", "Lanternhead", "Winterfold",
             "Oxley Green"],
    "kind": ["market town", "mill town", "small port", "quarry town", "hill town", "fishing town", "railway town",
             "garrison town", "weaving town", "spa town"],
    "founder": ["a company of salt merchants", "seven families of weavers", "the widow of a ferryman",
                "monks who had lost their way in a flood", "a retired sea captain and his crew",
                "drovers who needed a dry place for the night", "miners from the other side of the hills",
                "an order of the county court", "two brothers who could not agree on a road",
                "a guild of coopers", "charcoal burners", "soldiers whose regiment had been dissolved"],
    "trade": ["rope", "clocks", "umbrella handles", "salted herring", "roof slates", "church bells", "wool blankets",
              "beet sugar", "printing type", "glass bottles", "candles", "garden tools", "barometers", "paper",
              "sailcloth", "mustard", "bicycle lamps", "oak barrels"],
    "landmark": ["a lighthouse that was built two miles from the sea", "a covered bridge of black oak",
                 "a clock tower with three faces and four hands", "a market hall on forty stone legs",
                 "the widest staircase in the province", "a windmill that has never had sails",
                 "an aqueduct of nineteen arches", "a library in a former salt store",
                 "a chapel whose bell is hung in a tree", "a dry dock cut into the cliff",
                 "a weighing house with a floor of brass", "a theatre that seats eighty",
                 "a water tower in the shape of a teapot", "a prison that was used only once",
                 "an observatory on the roof of the bakery", "a statue of an unknown postman"],
    "festival": ["Feast of Lamps", "Barrel Race", "Herring Supper", "Kite Day", "Blessing of the Locks",
                 "Night of Short Speeches", "Apple Weighing", "Bell Week", "Candle Regatta", "Wool Fair",
                 "Festival of Lost Hats", "Snow Market", "Rope Pulling", "Pudding Court", "Mustard Monday",
                 "Ferrymen's Ball", "Bonfire of Bad Timetables", "Duck Parliament"],
    "month": ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
              "November", "December"],
    "first": ["Adela", "Bertram", "Cecily", "Dorian", "Edith", "Felix", "Greta", "Hugo", "Imogen", "Jasper",
              "Katrin", "Lionel", "Mabel", "Norris", "Odile", "Percival", "Quentin", "Rosamund", "Silas", "Thea",
              "Ursula", "Victor", "Winifred", "Xavier", "Yvette", "Zachary", "Agnes", "Barnaby", "Clementine",
              "Desmond", "Elsbeth", "Fergus", "Gwendolen", "Horatio", "Isolde", "Joachim"],
    "last": ["Anstruther", "Bellwether", "Crabtree", "Dunnock", "Eversleigh", "Fothergill", "Grimshaw", "Hartigan",
             "Inglewood", "Jessop", "Kettering", "Lovelace", "Marchbanks", "Nettleship", "Oakapple", "Penhallow",
             "Quillfeather", "Ravensdale", "Sandalwood", "Thackeray-Moss", "Underhill", "Vexley", "Whitlock",
             "Yardley", "Zeller", "Applegarth", "Birdwhistle", "Copperfield-Lane", "Draycott", "Elphinstone",
             "Fairweather", "Gathercole", "Honeychurch", "Ironmonger", "Jellicoe", "Kingfisher"],
    "profession": ["engineer", "clockmaker", "surveyor", "botanist", "bridge builder", "instrument maker",
                   "printer", "schoolteacher", "physician", "shipwright", "mathematician", "glass blower"],
    "relation": ["the youngest of nine children", "the only child of a lock keeper", "the daughter or son, the parish "
                 "book does not say which, of a travelling tailor", "one of twins", "raised by an aunt who kept bees",
                 "the fourth child of a baker", "brought up above a pawnshop", "the child of two schoolteachers"],
    "early": ["At twelve {name} left school to carry messages for {=employer}.",
              "The first job, at {=employer}, lasted four days; the second, at {=employer}, lasted {n:6-14} years.",
              "An early talent for drawing led to an apprenticeship with {=employer}.",
              "For {n:3-9} years {name} kept the accounts of {=employer}, and later said that all useful arithmetic was learned there.",
              "After a short and unhappy time at {=employer}, {name} walked the {n:40-160} miles to {other} with a borrowed coat.",
              "Lessons were paid for by working nights for {=employer}.",
              "A long illness in childhood left {name} with a love of reading and a dislike of soup."],
    "employer": ["a maker of barometers", "the county surveyor", "the harbour office", "a lamp factory",
                 "the last rope works on the river", "a dealer in second-hand bells", "the railway",
                 "a printer of seed catalogues", "the pumping station", "a firm of piano movers", "the weather office",
                 "an undertaker with a taste for machinery"],
    "habit": ["{name} is said to have worn two watches, one for the hour and one for company.",
              "Visitors remembered the workshop chiefly for its {n:11-60} unfinished chairs.",
              "In letters to friends {name} always gave the height of the river before the news.",
              "{name} never travelled without a folding ladder.",
              "Of the {n:90-400} notebooks that survive, more than half concern the weather.",
              "Every morning, whatever the season, {name} walked to the nearest bridge and back.",
              "{name} refused to own a desk and wrote standing, on the lid of a piano.",
              "A colleague wrote that {name} could be late for anything except breakfast.",
              "{name} kept a tame jackdaw that learned to ring for tea.",
              "On Sundays the house was open to anybody with a question and a cake.",
              "{name} paid apprentices double for finding an error in a drawing, and triple for finding it twice.",
              "{name} collected road signs, and returned most of them."],
    "honour": ["A street in {other} bears the name.", "The county gave {name} a silver compass, which was stolen at the ceremony.",
               "A medal was struck, but only {n:7-30} copies are known.",
               "The university of Corvale offered a degree; {name} replied that the fee was too high.",
               "There is a small museum in {other}, open on Thursdays.",
               "The portrait in the council chamber of {other} was painted from memory and looks like somebody else.",
               "{name} declined all honours but accepted a lifetime of free ferry tickets.",
               "No monument was ever put up, at the family's request."],
    "town detail": ["The streets near the water are so narrow that the postmen walk sideways.",
                    "A fire in {n:1690-1860} destroyed the eastern quarter, which was rebuilt in brick within {n:3-9} years.",
                    "Its school has taught navigation since {n:1700-1850}, although the sea is a day's ride away.",
                    "The weekly market was moved from Tuesday to Friday in {n:1750-1880} after a dispute about geese.",
                    "Until {n:1820-1905} every house paid a tax on its windows, and many are still bricked up.",
                    "The public baths have {n:14-60} tubs and one very large towel.",
                    "Travellers have complained about the bells since at least {n:1650-1800}.",
                    "There are {n:9-41} wells within the old walls, of which {n:3-8} give drinkable water.",
                    "A daily paper was printed here from {n:1801-1850} to {n:1870-1930}; it carried mostly tide tables.",
                    "The stone for the quay was brought by sledge over a frozen lake.",
                    "In the flood of {n:1770-1899} the water stood {n:3-9} feet deep in the nave.",
                    "The town keeps its own time, {n:4-11} minutes behind the capital.",
                    "A tunnel under the main square, {n:80-400} yards long, was dug by mistake.",
                    "Its football club has lost every final it has ever played.",
                    "The orchard behind the town hall holds {n:40-210} kinds of pear.",
                    "Coal was found nearby in {n:1790-1860}, and ran out before the railway arrived.",
                    "The old customs office is now a bakery, and the scales are still used.",
                    "Each spring the council walks the boundary, a matter of {n:9-26} miles and several inns.",
                    "By an ancient right the inhabitants may graze one goat each on the cricket field.",
                    "The hospital was a gift of the glove makers, who asked only that it be painted green.",
                    "A tramway with {n:3-12} cars runs from the station to the top of the hill.",
                    "Its dialect has {n:7-20} words for rain and none for umbrella.",
                    "The mayor is chosen by drawing beans from a hat, black for yes.",
                    "There have been three attempts to rename it, all defeated by the sign painters.",
                    "On clear days one can count {n:9-31} church towers from the wall.",
                    "The cattle bridge, {n:30-120} yards downstream, is older than the road it carries."],
    "transport": ["Trains to {other} run {n:3-14} times a day.", "A ferry links it with {other}, weather permitting.",
                  "The road to {other}, {n:9-48} miles long, was paved in {n:1800-1920}.",
                  "A canal of {n:6-38} locks joins it to {other}.",
                  "The nearest railway station is at {other}.",
                  "Coaches for {other} leave from the yard of the Three Tuns."],
    "machine kind": ["steam pump", "tide predictor", "knitting frame", "grain elevator", "letter sorter", "fog signal",
                     "rope-twisting engine", "ploughing engine", "bread oven", "printing press", "ticket machine",
                     "weather recorder", "bottle washer", "log splitter", "tunnel borer", "calculating engine"],
    "machine word": ["Heron", "Badger", "Nightingale", "Patient Annie", "Colossus of Osk", "Sparrow", "Old Reliable",
                     "Grasshopper", "Twelve Apostles", "Silent Partner", "Whirligig", "Mole", "Cormorant",
                     "Seven Sisters", "Tortoise", "Lamplighter", "Woodpecker", "Grand Duchess", "Hedgehog", "Kingpin",
                     "Drummer Boy", "Iron Aunt", "Magpie", "Long Tom"],
    "machine detail": ["A single boiler holds {n:90-640} gallons and must be refilled every {n:3-9} hours.",
                       "Its {n:14-90} gears are cut from pear wood, which makes less noise than iron.",
                       "The main wheel is {n:5-19} feet across and turns {n:8-60} times a minute.",
                       "It needs a crew of {n:2-6}, one of whom does nothing but listen.",
                       "The first model burst on its second day, without hurting anybody except a hen.",
                       "Oil is fed to the bearings through goose quills.",
                       "With careful firing it burns no more than {n:11-48} pounds of coal an hour.",
                       "A governor with two brass balls keeps the speed within one part in {n:30-90}.",
                       "The frame weighs {n:3-28} tons, the moving parts less than a tenth of that.",
                       "A later form replaced the chain by a belt of camel hair.",
                       "To stop it in a hurry one pulls the red cord and stands well back.",
                       "Some {n:12-240} were sold, most of them abroad.",
                       "The patent runs to {n:11-70} pages and mentions the word 'gently' {n:4-19} times.",
                       "Its sound was described as that of a large animal thinking.",
                       "The most common fault is a worn cam on the third shaft, which can be changed in {n:20-55} minutes.",
                       "Tests at the county show gave an efficiency of {n:9-34} per cent.",
                       "Every bolt is numbered, and the numbers skip thirteen.",
                       "It was painted dark green with yellow lines, later plain black."],
    "machine use": ["It was meant to replace {n:6-40} workers, and in the end gave work to {n:41-90}.",
                    "It did in an hour what had taken a family a week.",
                    "Farmers hired it by the day and paid in grain.",
                    "The navy bought {n:3-20} and used them as ballast.",
                    "For {n:10-45} years it ran day and night, stopping only for the Sunday of the fair.",
                    "At first nobody could say what it was for, and this helped its sales.",
                    "Its output, {n:200-4800} pieces a shift, was never believed until it was counted."],
    "fate": ["The last one still turns, on the first Saturday of the month, in {other}.",
             "One was sold for scrap in {n:1890-1950} and bought back by schoolchildren.",
             "The drawings were lost in a flood; the machine was not.",
             "It can be seen in the museum at {other}.",
             "A working model, one eighth of the size, stands in the town hall of {other}.",
             "Parts of it hold up a greenhouse in {other}."],
    "book": ["The Patient River", "A Short History of Mud", "Forty Ways to Cross", "The Lamplighter's Arithmetic",
             "Letters to a Lock Keeper", "On the Behaviour of Bells", "The Salt Road", "Nobody's Field",
             "Principles of Small Bridges", "The Year Without Geese", "A Grammar of Rain", "The Honest Barometer"],
    "book subject": ["the building of a canal that was never filled", "the manners of ferrymen",
                     "how to measure a hill without climbing it", "the lives of forty unsuccessful inventors",
                     "a winter spent in a signal box", "the weather of a single village over ninety years",
                     "the mathematics of rope", "a journey on foot around the coast",
                     "the quarrel between two neighbouring mills", "what people carry when they move house"],
    "book detail": ["The first printing of {n:200-900} copies sold out in {n:5-40} days.",
                    "Chapter {n:4-12}, on puddles, is often read aloud in schools.",
                    "A misprint on page {n:20-180} made it the only book in the province to recommend swallowing nails.",
                    "It was written in {n:5-30} weeks, on the backs of railway tickets.",
                    "The maps, all {n:7-25} of them, were drawn by the author's sister.",
                    "Reviewers praised its calm and regretted its length, {n:380-940} pages.",
                    "The second edition corrects {n:30-160} errors and adds as many.",
                    "It has been translated into {n:4-22} languages, twice into the same one.",
                    "The index was prepared by a retired sea captain and is arranged by depth.",
                    "The manuscript was left on a ferry and returned with comments.",
                    "Its last sentence is carved above the door of the library at {other}.",
                    "A play was made of it, with {n:2-4} acts and a real pump."],
    "stranger": ["the station master", "a retired pilot", "the baker's widow", "the new schoolmistress", "a piano tuner",
                 "the deputy harbour master", "a travelling dentist", "the keeper of the weights", "a bell founder",
                 "the youngest councillor", "a seller of maps", "the night watchman"],
    "news": ["The council of {town} voted {n:6-11} to {n:1-5} on {=weekday} to repair the footbridge before the winter. {=stranger}, who spoke for the petition, presented {n:120-900} signatures and a loose plank.",
             "Heavy rain raised the {river} at {town} to {n:3-9} feet {n:1-11} inches on {=weekday}, the highest mark since {n:1850-1899}. Two boats broke loose and were found the next morning at {other}, one of them with a cat aboard.",
             "At the show in {town} the prize for the heaviest marrow went to {=stranger} with {n:31-68} pounds. The judges weighed it three times, since the scales had been borrowed from the post office.",
             "{=stranger} of {town} has completed a census of the swallows in {region}: {n,:1200-9800} birds, in {n:140-700} barns. \"They are hard to count,\" the report says, \"because they do not see why they should be.\"",
             "The {festival} was held at {town} in fine weather. The committee counted {n,:900-6400} visitors, {n:20-90} stalls and {n:2-14} lost children, all of whom were returned before supper.",
             "A new clock has been put up at the station of {town}. It was set by {=stranger}, and it is {n:2-9} minutes fast so that nobody misses the train. Regular travellers now arrive {n:2-9} minutes late on purpose.",
             "Workmen who were digging a drain at {town} found a jar with {n:40-300} silver coins, none later than {n:1510-1690}. The finder, {=stranger}, asked only for the jar.",
             "The line between {town} and {other} will be closed from the {n:2-27}th for repairs to the viaduct. Passengers are carried by coach at {n:6-8}.{n:10-50} in the morning and {n:2-5}.{n:10-50} in the afternoon.",
             "The price of {trade} at {town} rose by {n:2-19} per cent in a week. Dealers blame the frost, buyers blame the dealers, and {=stranger} blames the newspapers.",
             "A whale was seen off {other} on {=weekday}. It stayed for {n:2-5} hours. The fishing boats went out to have a look, and the bakery of {town} sold out of buns.",
             "The court at {town} heard the case of the missing weathercock. {=stranger} admitted having borrowed it \"to see which way the wind blew at home\" and was fined {n:2-20} shillings, with {n:5-14} days to pay.",
             "At {town} the library counted its books for the first time since {n:1880-1910}. There are {n,:4100-19000}, or {n:12-130} more than were ever bought.",
             "Lost, between {town} and {other}, a brown leather case with {n:3-30} letters, a tuning fork and half a cheese. A reward is offered for the letters.",
             "For sale: a {=machine kind}, little used, with spare belt and {n:2-9} bolts over. Apply to {=stranger}, {town}, after dark."],
    "weekday": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "dish": ["leek soup", "onion tart", "plum dumplings", "barley bread", "fish pie", "apple pudding", "pickled beets",
             "mutton stew", "ginger biscuits", "mustard eggs", "chestnut cake", "oat porridge", "bean casserole",
             "pear chutney", "rye pancakes", "potato rolls"],
    "staple": ["{n:200-900} g flour", "{n:2-6} large onions", "{n:300-900} g potatoes", "{n:1-4} cups of oats",
               "{n:150-450} g barley", "{n:2-8} eggs", "half a litre of milk", "{n:200-800} g leeks", "1 kg plums",
               "{n:300-700} g white beans", "{n:3-7} sour apples", "{n:250-600} g smoked fish"],
    "flavour": ["a spoonful of mustard", "{n:1-3} bay leaves", "a pinch of nutmeg", "salt and black pepper",
                "the peel of one lemon", "{n:10-60} g butter", "a handful of parsley", "{n:2-5} cloves",
                "a glass of cider", "{n:20-120} g brown sugar", "a thumb of ginger", "{n:1-2} tsp caraway seeds"],
    "step": ["Chop everything that can be chopped, and weigh it again.",
             "Melt the fat in a heavy pot over a low fire; it must not brown.",
             "Add the liquid a little at a time and stir until the spoon leaves a track.",
             "Cover with a cloth and leave in a warm place for {n:30-90} minutes.",
             "Boil hard for {n:4-12} minutes, then let it simmer for {n:20-80}.",
             "Knead for {n:8-15} minutes, or until your arms object.",
             "Taste. Add salt. Taste again, and do not add any more.",
             "Line the dish with paper and fill it to two thirds.",
             "Bake at {n:160-230} °C for {n:18-70} minutes, turning it once.",
             "Skim off the foam and give it to nobody.",
             "Press through a sieve while still hot.",
             "Roll out to the thickness of a finger and cut into {n:8-24} pieces.",
             "Turn off the heat and wait, which is the difficult part."],
    "serving": ["Serve with dark bread.", "It keeps for {n:2-9} days in a cool cellar.", "It is better on the second day.",
                "In {town} it is eaten cold, standing up.", "Serves {n:3-10}, or {n:2-3} who have been walking.",
                "The original, from {town}, has twice the butter.", "Children like it with honey; so does everybody else."],
    "scene": ["""AT THE TICKET WINDOW IN {TOWN}
- A single to {other}, please.
- That is {n:2-9} shillings. Do you want the fast train or the one that arrives?
- What is the difference?
- The fast one leaves at {n:6-11}:{n:10-55}. It has not been seen since {=weekday}.
- Then the other one.
- Platform {n:1-4}. Mind the goat.""",
              """THE WORKSHOP, {TOWN}
"It makes a noise," said the customer.
"What kind of noise?"
"Like a drawer full of spoons, but only on {=weekday}s."
The mechanic put an ear to the lid and turned the handle {n:3-12} times. "You have been oiling it."
"Of course. Every week."
"That is the trouble. This model wants {n:2-5} drops a year. Leave it with me until {=weekday}, and do not tell it anything." """,
              """TELEPHONE, THE LOCK AT {TOWN} TO THE LOCK AT {OTHER}
- What do you have?
- {n:4-8} feet {n:1-11}, rising. And you?
- {n:3-6} feet {n:1-11}. Are you going to open?
- I will open number {n:2-7} at noon and number {n:8-12} at one, if {=stranger} agrees.
- He never agrees.
- He agreed in {n:1897-1911}.
- That was about the ducks.""",
              """AT THE LIBRARY OF {TOWN}
Reader: Do you have "{=book}"?
Librarian: It is out. It has been out since {n:1888-1915}.
Reader: Who has it?
Librarian: I lent it to {=stranger}, who is nearly at the end.
Reader: Is there something like it?
Librarian: There is "{=book}", which is the same story told by somebody cheerful. It is due back in {n:2-5} weeks, or you can read the first {n:30-90} pages here, under the lamp.""",
              """MARKET DAY IN {TOWN}
"How much are the pears?"
"{n:3-9} pence a pound, {n:5-9} for {n:2-3} pounds, and for you I will throw in the bruised ones."
"They are all bruised."
"Then I will throw them in carefully."
"I walked here from {other}, {n:4-19} miles."
"Then you should have brought your own pears." In the end they agreed on {n:2-4} pounds for a shilling, and both went away believing that they had won.""",
              """QUESTIONS AND ANSWERS AT THE MUSEUM OF {TOWN}
Q: How old is the {=machine kind}?
A: It was built in {n:1790-1890}, but the handle is from {n:1891-1920} and the wheel is from last year.
Q: Does it work?
A: It works better than it did when it was new.
Q: How long did it take to build?
A: About {n:8-40} months, not counting the strike.
Q: May I touch it?
A: Yes. Everything that must not be touched is in the cellar.""",
              """LOST PROPERTY, {TOWN}
- I have lost a suitcase. Brown, with a strap.
- We have {n:20-70} brown ones. {n:8-19} have a strap.
- Mine has a label: {other}.
- {n:3-7} of them say {other}. What is inside?
- A trombone, {n:2-6} shirts and a letter from {=stranger}.
- Ah. We have been playing that trombone. I will fetch it.""",
              """A LESSON IN {TOWN}
Teacher: A boat goes {n:6-9} miles an hour in still water, and the {river} flows at {n:1-3}. How long does it take to go {n:20-60} miles upstream?
First pupil: It depends on the lock keeper.
Teacher: There is no lock keeper in the problem.
Second pupil: Then it depends on the ducks.
Teacher: Leave out everything that is not a number.
Third pupil: Is it allowed to row?"""],
}


class World:
    """Who, what and where; every article states the facts that the questions ask for."""

    def __init__(self):
        self.articles = {}
        self.towns = [self.town(name) for name in WORDS["town"]]
        firsts, lasts = dice.shuffled(WORDS["first"]), dice.shuffled(WORDS["last"])
        self.people = [self.person(f"{first} {last}", first) for first, last in zip(firsts, lasts)]
        makers = Deck(dice, self.people)
        self.machines = [self.machine(word, makers.deal()) for word in WORDS["machine word"]]
        self.books = [self.book(title, makers.deal()) for title in WORDS["book"]]
        for kind in ("town", "person", "machine", "book"):
            for thing in {"town": self.towns, "person": self.people, "machine": self.machines, "book": self.books}[kind]:
                self.articles[thing["title"]] = getattr(self, "write_" + kind)(thing)

    def town(self, name):
        return {"title": name, "town": name, "river": deal("river"), "region": deal("region"), "kind": deal("kind"),
                "founded": dice.between(1080, 1640), "founder": deal("founder"), "trade": deal("trade"),
                "landmark": deal("landmark"), "festival": deal("festival"), "month": deal("month"),
                "people": f"{dice.between(900, 28000):,}"}

    def person(self, name, first):
        born = dice.between(1770, 1880)
        return {"title": name, "full": name, "name": first, "born": born, "died": born + dice.between(47, 93),
                "place": dice.pick(self.towns)["title"], "profession": deal("profession")}

    def machine(self, word, maker):
        kind = deal("machine kind")
        return {"title": word + " (" + kind + ")", "word": word, "kind": kind, "maker": maker["full"],
                "year": maker["born"] + dice.between(22, 45), "place": dice.pick(self.towns)["title"]}

    def book(self, title, author):
        return {"title": title, "author": author["full"], "year": author["born"] + dice.between(24, 46),
                "subject": deal("book subject"), "place": dice.pick(self.towns)["title"]}

    def other(self, *but):
        return dice.pick([t["title"] for t in self.towns if t["title"] not in but])

    def join(self, templates, **facts):
        return " ".join(fill(t, other=self.other(facts.get("town"), facts.get("place")), **facts) for t in templates)

    def write_town(self, town):
        first = dice.pick(["{town} is a {kind} in {region}, on the river {river}.",
                           "{town}, a {kind} of {people} inhabitants, lies in {region} where the river {river} bends to the south.",
                           "The {kind} of {town} stands on both banks of the river {river}, in {region}.",
                           "{town} is the name of a {kind} in {region}; the river {river} runs through it."])
        second = dice.pick(["It was founded in {founded} by {founder}.",
                            "Its history begins in {founded}, when it was founded by {founder}.",
                            "Founded in {founded} by {founder}, it received its charter {n:20-150} years later."])
        if "{people}" not in first:
            second += dice.pick([" At the last count it had {people} inhabitants.", " About {people} people live there."])
        return self.join([first, second, dice.pick(["For a long time it lived from the making of {trade}.",
                                                    "The chief trade is in {trade}, sent by cart as far as the capital.",
                                                    "It is known for {trade}.",
                                                    "Most families work in {trade}, or used to."]),
                          dice.pick(["The principal sight is {landmark}.", "Visitors come to see {landmark}.",
                                     "Its pride is {landmark}.", "Beside the bridge there is {landmark}."]),
                          "{=town detail}",
                          dice.pick(["The {festival}, held every {month}, fills the inns for a week.",
                                     "Every {month} the town holds the {festival}.",
                                     "In {month} the {festival} is held on the meadows below the town.",
                                     "Its great day is the {festival}, which is held in {month}."]),
                          "{=town detail}", "{=town detail}", "{=transport}", "{=town detail}"], **town)

    def write_person(self, person):
        born = dice.pick(["{full} ({born}–{died}) was a {profession}, born in {place}.",
                          "{full}, a {profession}, was born in {place} in {born} and died in {died}.",
                          "{full} was born in {place} in the spring of {born}, {=relation}, and became a {profession}.",
                          "The {profession} {full} was born in {born} at {place}, {=relation}."])
        works = [m for m in self.machines if m["maker"] == person["full"]]
        books = [b for b in self.books if b["author"] == person["full"]]
        made = [dice.pick(["In {year} came the machine for which {name} is remembered, the {word}.",
                           "The {word}, a {kind}, followed in {year}.",
                           "Fame came with the {word}, invented in {year} after {n:3-11} years of trials."]) for _ in works]
        text = self.join([born, "{=early}", "{=early}"], **person)
        for template, work in zip(made, works):
            text += " " + fill(template, name=person["name"], **{k: work[k] for k in ("year", "word", "kind")})
        for book in books:
            text += " " + fill(dice.pick(["{name} also wrote \"{title}\" ({year}), on {subject}.",
                                          "The book \"{title}\", on {subject}, appeared in {year}."]),
                               name=person["name"], **{k: book[k] for k in ("title", "year", "subject")})
        end = dice.pick(["{full} died in {died}, aged {age}.", "Death came in {died}, at the age of {age}, during a lecture.",
                         "After {n:5-20} quiet years in {other} {name} died in {died}."])
        return text + " " + self.join(["{=habit}", "{=habit}", end, "{=honour}"],
                                      age=person["died"] - person["born"], **person)

    def write_machine(self, machine):
        first = dice.pick(["The {word} is a {kind} that was invented by {maker} and first built at {place} in {year}.",
                           "Invented by {maker}, the {kind} called the {word} was first built in {year} at {place}.",
                           "The {word}, a {kind}, was first built at {place} in {year}; its inventor was {maker}."])
        return self.join([first, "{=machine detail}", "{=machine use}", "{=machine detail}", "{=machine detail}",
                          "{=machine detail}", "{=machine use}", "{=fate}"], **machine)

    def write_book(self, book):
        first = dice.pick(["\"{title}\" is a book by {author}, published at {place} in {year}.",
                           "In {year} a printer at {place} brought out \"{title}\" by {author}.",
                           "\"{title}\", written by {author}, was published in {year} in {place}."])
        return self.join([first, dice.pick(["Its subject is {subject}.", "It is about {subject}.",
                                            "It tells, without haste, of {subject}."]),
                          "{=book detail}", "{=book detail}", "{=book detail}", "{=book detail}", "{=book detail}"], **book)


def question_items(world, count):
    """Two-hop questions: the first passage leads to the second, which holds the answer."""
    towns = {t["title"]: t for t in world.towns}
    people = {p["full"]: p for p in world.people}
    machines, books, two = Deck(dice, world.machines), Deck(dice, world.books), Deck(dice, world.towns)
    alike = itertools.cycle((True, False))

    def birthplace_of_inventor():
        m = machines.deal()
        return f"In which town was the inventor of the {m['word']} born?", people[m["maker"]]["place"], [m["title"], m["maker"]]

    def festival_at_workshop():
        m = machines.deal()
        return (f"Which festival is held in the town where the {m['word']} was first built?",
                towns[m["place"]]["festival"], [m["title"], m["place"]])

    def author_born():
        b = books.deal()
        return f"In what year was the author of \"{b['title']}\" born?", str(people[b["author"]]["born"]), [b["title"], b["author"]]

    def river_at_printer():
        b = books.deal()
        return (f"On which river lies the town where \"{b['title']}\" was published?", towns[b["place"]]["river"],
                [b["title"], b["place"]])

    def founded_first():
        a, b = two.deal(), two.deal()
        return (f"Which town was founded first, {a['title']} or {b['title']}?",
                min(a, b, key=lambda t: t["founded"])["title"], [a["title"], b["title"]])

    def same_region():
        a, same = two.deal(), next(alike)
        b = dice.pick([t for t in world.towns if t is not a and (t["region"] == a["region"]) == same])
        return (f"Are {a['title']} and {b['title']} in the same region?", "yes" if same else "no", [a["title"], b["title"]])

    kinds = [birthplace_of_inventor, festival_at_workshop, author_born, river_at_printer, founded_first, same_region]
    for number in range(count):
        question, answer, needed = kinds[number % len(kinds)]()
        rest = [title for title in world.articles if title not in needed]
        titles = dice.shuffled(needed + dice.shuffled(rest)[:dice.between(6, 10)])
        context = "\n".join(f"Passage {i + 1}:\n{t}\n{world.articles[t]}" for i, t in enumerate(titles))
        yield {"_id": f"hypic-{number:02d}", "dataset": "hotpotqa", "input": question, "context": context,
               "answers": [answer], "length": len((context + " " + question + " " + answer).split()),
               "language": "en", "all_classes": None, "supporting": needed}


def recipe(world):
    dish, town = deal("dish"), world.other()
    lines = [fill("{town} {dish}", town=town, dish=dish), ""]
    lines += [expand("- {=staple}", {}) for _ in range(3)]
    lines += [expand("- {=flavour}", {}) for _ in range(dice.between(2, 4))] + [""]
    lines += [f"{i + 1}. " + fill("{=step}") for i in range(dice.between(4, 6))]
    return "\n".join(lines + ["", fill("{=serving} {=serving}", town=town)])


def tables(world):
    def sample(count):
        return dice.shuffled(world.towns)[:count]

    parts = []
    for year in (1861, 1871, 1881, 1891):
        rows = [f"{t['title']:<18}{dice.between(180, 5200):>8,}{dice.between(900, 28000):>12,}{dice.random() * 9 + 21:>9.1f}"
                for t in sample(9)]
        parts.append(f"Census of {year}: houses, inhabitants and mean age\n\n" +
                     f"{'town':<18}{'houses':>8}{'inhabitants':>12}{'age':>9}\n" + "\n".join(rows))
    for day in ("Monday", "Saturday"):
        for start, end in ((t[0], t[1]) for t in (sample(2), sample(2))):
            rows = [f"| {5 + 2 * i + dice.between(0, 1):02d}:{dice.between(0, 59):02d} | {6 + 2 * i + dice.between(0, 1):02d}:"
                    f"{dice.between(0, 59):02d} | {dice.pick(['fast', 'slow', 'mail', 'goods'])} |" for i in range(7)]
            parts.append(f"Trains from {start['title']} to {end['title']}, {day}\n\n| departs | arrives | kind |\n|---|---|---|\n" +
                         "\n".join(rows))
    for river in ("Marrow", "Quen", "Vare"):
        rows = [f"{river},{hour:02d}:00,{dice.random() * 3 + 1:.2f},{dice.between(2, 19)},{dice.between(-4, 24)}"
                for hour in range(0, 24, 2)]
        parts.append(f"Gauge at the {river} bridge\n\nriver,hour,level_m,wind_knots,temperature_c\n" + "\n".join(rows))
    for town in sample(4):
        total, rows = 0, []
        for item in dice.shuffled(WORDS["trade"])[:8]:
            count, price = dice.between(3, 240), dice.between(12, 990)
            total += count * price
            rows.append(f"{item:<18}{count:>5} x {price / 100:>6.2f} = {count * price / 100:>9.2f}")
        parts.append(f"Account of the warehouse at {town['title']}\n\n" + "\n".join(rows) + f"\n{'total':<29}= {total / 100:>11.2f}")
    return parts


def write(name, parts):
    (OUT / name).write_text("\n\n\n".join(parts) + "\n", encoding="utf-8")


def main():
    world = World()

    def articles(things):
        return [t["title"] + "\n\n" + world.articles[t["title"]] for t in things]

    write("towns.txt", articles(world.towns))
    write("people.txt", articles(world.people))
    write("machines.txt", articles(world.machines))
    write("books.txt", articles(world.books))
    write("recipes.txt", [recipe(world) for _ in range(24)])
    write("tables.txt", tables(world))
    write("gazette.txt", [fill("{=news}", other=world.other(t["title"]), **t) for t in world.towns + world.towns])
    scenes = []
    for _ in range(32):
        town = dice.pick(world.towns)
        other = world.other(town["title"])
        scenes.append(fill("{=scene}", TOWN=town["title"].upper(), other=other, OTHER=other.upper(), river=town["river"]).rstrip())
    write("dialogues.txt", scenes)
    with open(OUT / "passages.jsonl", "w", encoding="utf-8", newline="\n") as file:
        for item in question_items(world, 24):
            file.write(json.dumps(item, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
