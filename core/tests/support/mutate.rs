//! Random damage to files, and what a loader must survive.

use super::gguf_writer::small_model;
use super::{Ram, Random, SMALL, fixture};
use oasis_core::Result;
use oasis_core::checkpoint::Checkpoint;
use oasis_core::checkpoint::source::Source;
use oasis_core::text::Message;

/// Checkpoints to damage.
pub struct Seeds {
    folders: Vec<[Vec<u8>; 4]>,
    ggufs: Vec<Vec<u8>>,
}

/// The files of a folder in this order.
const FILES: [&str; 4] = ["config.json", "tokenizer.json", "generation_config.json", "model.safetensors"];

/// A damaged checkpoint.
pub enum Damaged {
    Folder([Vec<u8>; 4]),
    Gguf(Vec<u8>),
}

/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 9] = [0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF, u64::MAX];
/// Pieces that mean something to the parsers.
const WORDS: [&[u8]; 14] = [
    b"null",
    b"-1",
    b"0",
    b"1e400",
    b"18446744073709551616",
    b"[]",
    b"{}",
    b"\"\"",
    b"true",
    b"[[[[[[[[",
    b"\\u0000",
    b"BPE",
    b"{\"type\":",
    b"\xff\xfe",
];

/// One to six changes within `bytes`, nearly always before `head`.
fn damage(random: &mut Random, bytes: &mut Vec<u8>, head: usize) {
    for _ in 0..1 + random.below(6) {
        let limit = if random.below(10) < 9 { head.min(bytes.len()) } else { bytes.len() };
        let at = random.below(limit);
        let len = 1 + random.below(24);
        let end = (at + len).min(bytes.len());
        match random.below(9) {
            0 if at < end => bytes[at] ^= 1 << random.below(8),
            1 if at < end => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 | 6 => {
                let width = [1, 2, 4, 8][random.below(4)];
                let edge = EDGES[random.below(EDGES.len())].wrapping_add(random.below(3) as u64);
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&edge.to_le_bytes()[..end - at]);
            }
            7 => drop(bytes.splice(at..end, WORDS[random.below(WORDS.len())].iter().copied())),
            _ => replace_number(random, bytes, at),
        }
    }
}

/// The next run of digits becomes another number.
fn replace_number(random: &mut Random, bytes: &mut Vec<u8>, from: usize) {
    let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit).map(|i| from + i) else { return };
    let end = bytes[start..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |i| start + i);
    let number = match random.below(3) {
        0 => EDGES[random.below(EDGES.len())],
        _ => random.below(300) as u64,
    };
    bytes.splice(start..end, number.to_string().into_bytes());
}

impl Seeds {
    pub fn new() -> Self {
        let folder = |name: &str| FILES.map(|f| std::fs::read(fixture(name).join(f)).unwrap());
        let pre = ["llama-bpe", "smollm", "qwen2"];
        Self {
            folders: SMALL.map(folder).to_vec(),
            ggufs: SMALL.iter().zip(pre).map(|(name, pre)| small_model(name, pre).bytes()).collect(),
        }
    }

    /// Case `case`: always the same damage.
    pub fn case(&self, case: u64) -> Damaged {
        let mut random = Random(case.wrapping_mul(0x2545_F491_4F6C_DD1D));
        let which = random.below(3);
        if random.below(2) == 0 {
            let mut bytes = self.ggufs[which].clone();
            damage(&mut random, &mut bytes, 8_000);
            return Damaged::Gguf(bytes);
        }
        let mut files = self.folders[which].clone();
        let file = [0, 0, 1, 1, 1, 2, 3, 3][random.below(8)];
        let head = if file == 3 { 2_800 } else { files[file].len() };
        damage(&mut random, &mut files[file], head);
        Damaged::Folder(files)
    }
}

impl Damaged {
    /// Bytes of all files.
    pub fn len(&self) -> usize {
        match self {
            Self::Folder(files) => files.iter().map(Vec::len).sum(),
            Self::Gguf(bytes) => bytes.len(),
        }
    }

    /// Opens it and, if that goes well, uses all of it.
    pub fn load(self) -> Result<()> {
        let checkpoint = match self {
            Self::Folder([config, tokenizer, generation, weights]) => {
                Checkpoint::from_parts("damaged", &config, weights, &tokenizer, Some(&generation))?
            }
            Self::Gguf(bytes) => Checkpoint::from_gguf(Source::memory("damaged", bytes))?,
        };
        checkpoint.build(&mut Ram)?;
        let t = &checkpoint.tokenizer;
        let ids = t.encode("hello <|im_end|> 123\u{e9}\n", true)?;
        t.decode(&ids)?;
        t.decode(&[0, 1, 5, 100, 127, u32::MAX])?;
        if t.has_chat_template() {
            t.chat(&[Message::new("user", "hi")], true)?;
        }
        Ok(())
    }
}
