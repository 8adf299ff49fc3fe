//! The table of draft sources, through the trait that the loop uses.

use oasis_core::checkpoint::Checkpoint;
use oasis_core::draft::{DraftFactory, DraftSetup, DraftShape, DraftTree, DraftView, Target};
use oasis_core::model::Model;
use oasis_core::registry::{Params, find};
use oasis_core::{Error, Result};
use oasis_kernels::Cpu;
use oasis_predictors::drafts;
use std::path::Path;

/// A target whose logits after `layers` layers for a path are easy to foresee: the next token is the last one
/// plus `layers`, the second best the one after that.
struct Counting {
    model: Model<Cpu>,
    paths: Vec<Vec<u32>>,
}

impl Target<Cpu> for Counting {
    fn shallow_logits(&mut self, _: &mut Cpu, path: &[u32], layers: usize) -> Result<Vec<f32>> {
        self.paths.push(path.to_vec());
        let mut logits = vec![0.0; 100];
        let next = path[path.len() - 1] as usize + layers;
        logits[next] = 2.0;
        logits[next + 1] = 1.0;
        Ok(logits)
    }

    fn model(&self) -> &Model<Cpu> {
        &self.model
    }
}

fn nano() -> (Cpu, Counting) {
    let mut backend = Cpu::new(1);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/bundled/nano");
    let model = Checkpoint::open(&folder).unwrap().build(&mut backend).unwrap();
    (backend, Counting { model, paths: Vec::new() })
}

fn build(backend: &mut Cpu, target: &Counting, name: &str, toml: &str) -> Result<DraftFactory<Cpu>> {
    let params = Params { table: toml.parse().unwrap(), seed: 0 };
    let entry = find("draft source", drafts::<Cpu>(), name)?;
    (entry.build)(DraftSetup { params: &params, backend, model: &target.model, bundled_eagle3: None })
}

fn propose(
    name: &str,
    toml: &str,
    tokens: &[u32],
    future: &[u32],
    size: (usize, usize),
) -> (DraftTree, Counting) {
    let (mut backend, mut target) = nano();
    let mut draft = build(&mut backend, &target, name, toml).unwrap()(7).unwrap();
    assert!(draft.hidden_layers().is_empty());
    let shape = DraftShape { depth: size.0, branches: size.1 };
    let view = DraftView { tokens, hidden: &[], shape, future };
    (draft.propose(&mut backend, &mut target, &view).unwrap(), target)
}

#[test]
fn names_differ_and_every_row_says_what_it_is() {
    let mut names: Vec<&str> = drafts::<Cpu>().iter().map(|e| e.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, ["eagle3", "ideal", "layer-skip", "ngram", "none"]);
    assert!(drafts::<Cpu>().iter().all(|e| !e.about.is_empty() && e.version > 0));
}

#[test]
fn unknown_keys_are_refused_and_documented_ones_are_known() {
    let (mut backend, target) = nano();
    for entry in drafts::<Cpu>() {
        let error =
            build(&mut backend, &target, entry.name, "nosuch = 1").err().expect(entry.name).to_string();
        assert!(error.contains(entry.name) && error.contains("nosuch"), "{error}");
        for param in entry.params {
            assert!(entry.name == "eagle3" || error.contains(param.name), "{error}");
            match build(&mut backend, &target, entry.name, &format!("{} = {}", param.name, param.default)) {
                Ok(_) => {}
                // No head is given here; that, and not the key, is what it must complain of.
                Err(e) => assert!(entry.name == "eagle3" && e.to_string().starts_with("eagle3.path"), "{e}"),
            }
        }
    }
}

#[test]
fn parameters_out_of_range_name_key_value_and_limit() {
    let (mut backend, target) = nano();
    for (name, toml, words) in [
        ("ngram", "max = 0", "max = 0"),
        ("ngram", "min = 5", "min = 5"),
        ("layer-skip", "layers = 6", "1 to 5"),
        ("ideal", "accuracy = 1.5", "1.5"),
        ("ideal", "accuracy = nan", "NaN"),
        ("ideal", "accuracy = -0.1", "-0.1"),
    ] {
        let error = build(&mut backend, &target, name, toml).err().expect(toml);
        assert!(matches!(error, Error::Setting { .. }), "{error}");
        assert!(error.to_string().contains(name) && error.to_string().contains(words), "{error}");
    }
}

#[test]
fn none_has_no_idea() {
    assert_eq!(propose("none", "", &[1, 2, 1, 2], &[1], (3, 3)).0, DraftTree::default());
}

#[test]
fn ngram_reads_the_text() {
    assert_eq!(propose("ngram", "", &[1, 2, 3, 1, 2], &[], (2, 1)).0, DraftTree::chain(vec![3, 1]));
    assert_eq!(propose("ngram", "min = 3", &[1, 2, 3, 1, 2], &[], (2, 1)).0, DraftTree::default());
}

#[test]
fn layer_skip_follows_its_own_chain() {
    let (tree, target) = propose("layer-skip", "layers = 2", &[50, 10], &[], (3, 2));
    assert_eq!(tree, DraftTree { tokens: vec![12, 14, 16, 13], parents: vec![0, 1, 2, 0] });
    assert_eq!(target.paths, [vec![10], vec![10, 12], vec![10, 12, 14]]);
    assert_eq!(
        propose("layer-skip", "", &[10], &[], (1, 1)).0,
        DraftTree::chain(vec![13]),
        "half of 6 layers"
    );
}

#[test]
fn ideal_reads_the_future_and_says_so() {
    let (mut backend, target) = nano();
    for entry in drafts::<Cpu>().iter().filter(|e| e.name != "eagle3") {
        let draft = build(&mut backend, &target, entry.name, "").unwrap()(1).unwrap();
        assert_eq!(draft.is_ideal(), entry.name == "ideal");
    }
    assert_eq!(propose("ideal", "", &[1, 2], &[3, 4, 5], (2, 2)).0, DraftTree::chain(vec![3, 4]));
    let (tree, _) = propose("ideal", "accuracy = 0", &[1, 2], &[3, 4, 5], (2, 1));
    assert!(tree.tokens.len() == 1 && [1, 2].contains(&tree.tokens[0]));
}
