//! Words for keys and lists.

use crate::{draw::Draw, prose::Prose};
use std::collections::BTreeSet;

/// First halves of keys.
const ADJECTIVES: &str = "able amber ample ancient angry arctic basic bitter blank blue bold brave brief bright brisk broad \
    brown busy calm careful casual cheap civil clean clever cold cosmic crisp curly damp dark deep dense dim distant \
    double dry dull eager early easy elastic empty even exact fair famous fast fierce final firm flat fond formal frail \
    free fresh gentle giant glad golden grand gray green happy harsh heavy hidden hollow honest humble icy idle inner \
    jolly keen kind large late lazy level light little local lonely loud loyal lucky magic merry mild modern narrow neat \
    new nimble noble odd old open orange pale patient plain polite proud pure purple quick quiet rapid rare raw red rich \
    ripe rough round royal rural sandy scarce secret sharp shiny short shy silent silver simple sleek slim slow small \
    smooth soft solid sour spare steep still strange strict strong sturdy subtle sudden sunny sweet swift tall tame tender \
    thick thin tidy tiny tough vague vast violet warm weak wet white wide wild wise wooden yellow young";

/// Second halves of keys.
const NOUNS: &str = "acorn actor album anchor angle ankle apple arch arrow atlas autumn badge bakery balcony banjo barn \
    basket beach beacon beard bell bench berry bicycle bird blanket boat bottle boulder bowl branch bread brick bridge \
    brush bucket bus butter button cabin cactus cake camera candle canoe canyon carpet castle cave cellar chain chair \
    chalk cherry chess chimney circle clock cloud coat coffee collar comet copper coral cotton cradle crane crayon creek \
    cricket crown cup curtain daisy dance desert desk diamond dinner dolphin donkey door dragon drum duck eagle easel elbow \
    engine envelope fabric falcon farm feather fence ferry fiddle field finger flag flame flute forest fork fountain fox \
    frame garden garlic gate giraffe glacier glove goat grain grape guitar hammer harbor hat hawk hedge helmet hill honey \
    hook horse hotel island ivory jacket jar jewel judge jungle kettle key kitchen kite ladder lake lamp lantern leaf lemon \
    letter library lily lion lizard lobster locket lodge magnet mango map maple marble market mask meadow melon mirror \
    mitten monkey moon mountain muffin museum nail needle nest nickel notebook oak oasis ocean olive onion orchard otter \
    oven owl paddle palace panda paper parade parrot path peach pebble pencil pepper piano pillow pilot pine planet plate \
    pocket poem pond pony poster potato prairie pumpkin puppet quartz quilt rabbit raft rail rain raven ribbon river robin \
    rocket roof rope rose sail salad salmon sandal scarf school shadow sheep shell ship shovel singer sky sled snail soap \
    sofa spider spoon squirrel stable stair statue stone storm stove street sugar sweater table tailor teapot temple tent \
    thimble thunder ticket tiger toast tomato tower train tree trumpet tulip tunnel turtle umbrella valley vase velvet \
    village violin wagon walnut watch water whale wheat wheel whistle willow window winter wolf wool yard zebra";

/// `adjective-noun` keys, all different.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    adjectives: Vec<&'static str>,
    nouns: Vec<&'static str>,
}

impl Keys {
    /// All keys.
    pub fn new() -> Self {
        let sorted = |words: &'static str| {
            let words: BTreeSet<&str> = words.split_whitespace().collect();
            words.into_iter().collect()
        };
        Self { adjectives: sorted(ADJECTIVES), nouns: sorted(NOUNS) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.adjectives.len() * self.nouns.len()
    }

    /// A random key.
    pub fn draw(&self, draw: &mut Draw) -> String {
        let i = draw.index(self.len());
        format!("{}-{}", self.adjectives[i / self.nouns.len()], self.nouns[i % self.nouns.len()])
    }

    /// The single words, sorted.
    fn words(&self) -> impl Iterator<Item = &str> {
        self.adjectives.iter().chain(&self.nouns).copied()
    }
}

/// Words for lists: those of keys, then those of a text that have three to twelve lower-case letters; sorted.
pub(crate) fn vocabulary(keys: &Keys, prose: &Prose) -> Vec<String> {
    let plain = |w: &&str| (3..=12).contains(&w.len()) && w.bytes().all(|b| b.is_ascii_lowercase());
    let words: BTreeSet<&str> =
        (0..prose.len()).map(|i| prose.slice(i, i + 1)).filter(plain).chain(keys.words()).collect();
    words.into_iter().map(str::to_owned).collect()
}

/// A random UUID of version 4, as text.
pub(crate) fn uuid(draw: &mut Draw) -> String {
    let mut bytes = [0u8; 16];
    for byte in &mut bytes {
        *byte = draw.below(256) as u8;
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = crate::task::hex(&bytes);
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// `letters` random letters, from `first` on (`b'a'`, `b'A'`).
pub(crate) fn letters(draw: &mut Draw, first: u8, letters: usize) -> String {
    (0..letters).map(|_| char::from(first + draw.below(26) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_keys_enough_for_long_contexts() {
        let keys = Keys::new();
        assert!(keys.len() > 40_000, "{}", keys.len());
        let key = keys.draw(&mut Draw::new(1));
        assert_eq!(key.split('-').count(), 2);
        let shared = keys.adjectives.iter().any(|a| keys.nouns.contains(a));
        assert!(!shared, "a word is adjective and noun");
    }

    #[test]
    fn uuids_have_version_and_variant() {
        let id = uuid(&mut Draw::new(3));
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]));
    }

    #[test]
    fn the_list_of_words_is_sorted_and_plain() {
        let prose = Prose::unwrapped("The river ran. It's Kate's own river, x and verylongwordindeed a");
        let words = vocabulary(&Keys::new(), &prose);
        assert!(words.is_sorted() && words.windows(2).all(|w| w[0] != w[1]));
        for (word, there) in [("and", true), ("ran.", false), ("verylongwordindeed", false), ("zebra", true)]
        {
            assert_eq!(words.contains(&word.to_owned()), there, "{word}");
        }
    }
}
