//! The conformance kit over the predictors' and draft sources' tables (policies/tests has the other two), and the
//! contract of drafts inside the loop.

use oasis_core::conformance::{check_entry, check_predictor};
use oasis_core::draft::DraftSetup;
use oasis_core::model::Family;
use oasis_core::registry::Params;
use oasis_core::settings::{Emit, Mode, Settings};
use oasis_kernels::Cpu;
use oasis_predictors::{PREDICTORS, drafts};
use oasis_tests::*;

#[test]
fn every_predictor_keeps_its_contract() {
    assert!(!PREDICTORS.is_empty());
    for entry in PREDICTORS {
        let mut findings = check_entry(entry, &|p: &Params| (entry.build)(p).map(drop));
        findings.extend(check_predictor(&|seed| (entry.build)(&Params { seed, ..Params::default() }), 256));
        assert!(findings.is_empty(), "{}: {}", entry.name, findings[0]);
    }
}

#[test]
fn every_draft_source_s_row_is_whole() {
    let mut engine = random_model(tiny_geometry(), Family::Llama, 0);
    let (backend, model) = (std::cell::RefCell::new(&mut engine.backend), &engine.model);
    for entry in drafts::<Cpu>().iter().filter(|e| e.name != "eagle3") {
        let build = |params: &Params| {
            let backend = &mut **backend.borrow_mut();
            (entry.build)(DraftSetup { params, backend, model, bundled_eagle3: None }).map(drop)
        };
        let findings = check_entry(entry, &build);
        assert!(findings.is_empty(), "{}: {}", entry.name, findings[0]);
    }
}

/// Drafts of every source go through the loop: within the rows of a step, the same for the same seed, and with
/// greedy decoding what is emitted does not depend on them.
#[test]
fn every_draft_source_leaves_greedy_decoding_as_it_is() {
    for entry in drafts::<Cpu>().iter().filter(|e| e.name != "eagle3") {
        let run = |draft: &str, emit: Emit| {
            let mut engine = random_model(tiny_geometry(), Family::Llama, 1);
            let prefix = [prefill(&mut engine, &random_prompt(64, 50, 3), 4)];
            let s = Settings { emit, ..settings(Mode::Dense, 0) };
            let p = policies("minmax", "lookahead", "lrs", draft);
            decode(&mut engine, &s, &p, &prefix, 24, |_, r| assert!(r.seqs[0].drafts < 4))
        };
        let (plain, accepted) = (run("none", Emit::One), run(entry.name, Emit::Accepted));
        let n = plain.tokens[0].len();
        assert_eq!(plain.tokens[0], accepted.tokens[0][..n], "{}", entry.name);
        assert_eq!(accepted, run(entry.name, Emit::Accepted), "{}", entry.name);
    }
}
