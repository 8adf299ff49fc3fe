//! The table of tasks. Help, `list`, `show` and the tests derive from it.

use crate::{
    fidelity, grammar, loaders, needle, passkey, ruler,
    task::{Task, TaskKind},
};
use oasis_core::{
    Error, Result,
    registry::{Param, Params},
};

/// Makes a task from its TOML table.
pub type BuildTask = fn(&Params) -> Result<Box<dyn Task>>;

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct TaskEntry {
    /// Name in configurations.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// What it demands of the model.
    pub kind: TaskKind,
    /// Version of its samples and scorer; part of the fingerprint.
    pub version: u32,
    /// Its parameters.
    pub params: &'static [Param],
    /// Makes one instance.
    pub build: BuildTask,
}

/// A row for a task in nano's language.
macro_rules! grammar {
    ($name:literal, $about:literal) => {
        TaskEntry {
            name: $name,
            about: $about,
            kind: TaskKind::Grammar,
            version: grammar::VERSION,
            params: grammar::PARAMS,
            build: |params| grammar::build($name, params),
        }
    };
}

/// A row for one of RULER's types.
macro_rules! ruler {
    ($name:literal, $params:expr, $about:literal) => {
        TaskEntry {
            name: $name,
            about: $about,
            kind: TaskKind::Ruler,
            version: ruler::VERSION,
            params: $params,
            build: |params| ruler::build($name, $params, params),
        }
    };
}

/// All tasks: those of this crate's own making, then the loaders of published data sets.
pub const TASKS: &[TaskEntry] = &join::<25, 10, 35>(OWN, loaders::ROWS);

const fn join<const A: usize, const B: usize, const N: usize>(
    own: [TaskEntry; A],
    loaded: [TaskEntry; B],
) -> [TaskEntry; N] {
    assert!(N == A + B, "the table has a row for every task");
    let mut rows = [own[0]; N];
    let mut i = 0;
    while i < N {
        rows[i] = if i < A { own[i] } else { loaded[i - A] };
        i += 1;
    }
    rows
}

const OWN: [TaskEntry; 25] = [
    grammar!("niah_single", "One secret code of three digits in filler text."),
    grammar!("niah_multikey", "One secret code among many with other keys, one for every 64 tokens."),
    grammar!("niah_multivalue", "All two to four things that one person owns, in order of appearance."),
    grammar!("niah_multiquery", "The cities in which three people live, asked for at once."),
    grammar!("kv", "The value of one of many key-value pairs, which make up 80 % of the document."),
    grammar!("vt", "The number at the end of a chain of variables, without the steps (nano fails at it)."),
    grammar!("vt_trace", "The variables on the way through such a chain, and the number."),
    grammar!("copy", "The last six of eight random words that were noted somewhere."),
    grammar!("cwe", "The word that makes up 30 % of all lists of words."),
    TaskEntry {
        name: passkey::NAME,
        about: "A pass key of five digits in noise that repeats (after arXiv 2305.16300).",
        kind: TaskKind::Retrieval,
        version: passkey::VERSION,
        params: passkey::PARAMS,
        build: passkey::build,
    },
    TaskEntry {
        name: needle::NAME,
        about: "One number of five digits at a random depth of a novel (after arXiv 2404.06654).",
        kind: TaskKind::Retrieval,
        version: needle::VERSION,
        params: needle::PARAMS,
        build: needle::build,
    },
    TaskEntry {
        name: fidelity::NAME,
        about: "Windows of a text, continued with its own tokens: distance from dense decoding, no score.",
        kind: TaskKind::Fidelity,
        version: fidelity::VERSION,
        params: fidelity::PARAMS,
        build: fidelity::build,
    },
    ruler!("ruler_niah_single_1", ruler::PARAMS, "One number in noise that repeats."),
    ruler!("ruler_niah_single_2", ruler::PROSE_PARAMS, "One number in prose."),
    ruler!("ruler_niah_single_3", ruler::PROSE_PARAMS, "One UUID in prose."),
    ruler!("ruler_niah_multikey_1", ruler::PROSE_PARAMS, "One of four numbers in prose, by its key."),
    ruler!("ruler_niah_multikey_2", ruler::PARAMS, "One number among nothing but other ones."),
    ruler!("ruler_niah_multikey_3", ruler::PARAMS, "The UUID of one UUID, among nothing but other ones."),
    ruler!("ruler_niah_multivalue", ruler::PROSE_PARAMS, "All four numbers of one key in prose."),
    ruler!(
        "ruler_niah_multiquery",
        ruler::PROSE_PARAMS,
        "The numbers of four keys in prose, asked for at once."
    ),
    ruler!("ruler_vt", ruler::PARAMS, "The five variables that a chain of assignments gives one value."),
    ruler!(
        "ruler_cwe",
        ruler::PROSE_PARAMS,
        "The ten words of a list that occur ten times as often as others."
    ),
    ruler!("ruler_fwe", ruler::PARAMS, "The three most frequent words of a coded text."),
    ruler!("ruler_qa_1", ruler::QA_PARAMS, "A question of SQuAD 2.0 on one of many documents."),
    ruler!("ruler_qa_2", ruler::QA_PARAMS, "A question of HotpotQA on several of many documents."),
];

/// Builds the task called `name`.
///
/// # Errors
/// No such task, with the nearest name; a parameter that the task does not know or refuses; a text that can't
/// be read.
pub fn find_task(name: &str, params: &Params) -> Result<Box<dyn Task>> {
    let entry = TASKS
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| Error::unknown_name("task", name, TASKS.iter().map(|entry| entry.name)))?;
    (entry.build)(params)
}
