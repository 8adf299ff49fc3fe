//! Reports against golden files: the same records give the same bytes.
//!
//! `fixtures/run-v1` is a run folder of schema version 1; a new version gets a folder beside it.

use oasis::record::{Results, Status};
use oasis::report::{Records, WIDTH, grid::Grid, markdown, plot, terminal, view::View};
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/run-v1")
}

fn records() -> Records {
    Records::open(&golden()).unwrap()
}

#[test]
fn the_terminal_report_is_as_committed() {
    let text = terminal::render(&records().results, WIDTH);
    assert!(text.lines().all(|l| l.chars().count() <= usize::from(WIDTH)), "a line is too long");
    insta::assert_snapshot!("terminal", text);
}

#[test]
fn report_md_is_as_committed() {
    let r = records();
    let plots = plot::all(&View::new(&r.results)).unwrap();
    let text = markdown::render(&r.results, r.environment.as_ref(), r.config.as_deref(), &plots).unwrap();
    insta::assert_snapshot!("report.md", text);
}

#[test]
fn tables_of_the_report_are_whole() {
    let r = records();
    let text = markdown::render(&r.results, r.environment.as_ref(), None, &[]).unwrap();
    let mut bars = None;
    for line in text.lines() {
        let plain = line.replace("\\|", "");
        let here = line.starts_with('|').then(|| plain.matches('|').count());
        assert!(bars.is_none() || here.is_none() || bars == here, "columns differ: {line}");
        bars = here;
    }
}

#[test]
fn a_report_is_written_with_all_its_plots_and_twice_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let r = records();
    let report = r.write(temp.path()).unwrap();
    let first = std::fs::read_to_string(&report).unwrap();
    let links: Vec<&str> = first.split("](").skip(1).filter_map(|s| s.split(')').next()).collect();
    assert_eq!(links.len(), 8);
    for link in links {
        let svg = std::fs::read_to_string(temp.path().join(link)).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("</svg>"), "{link}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{link}");
    }
    r.write(temp.path()).unwrap();
    assert_eq!(std::fs::read_to_string(&report).unwrap(), first);
}

#[test]
fn report_html_is_one_file_with_everything_in_it_and_nothing_from_elsewhere() {
    let mut r = records();
    r.results.failures.push(oasis::record::Failure {
        sample: "kv-0".into(),
        cell: "a <b> & `c`".into(),
        error: "<script>alert(1)</script>".into(),
    });
    let plots = plot::all(&View::new(&r.results)).unwrap();
    let page =
        markdown::render_html(&r.results, r.environment.as_ref(), r.config.as_deref(), &plots).unwrap();
    assert_eq!(page.matches("<svg").count(), plots.len());
    for title in ["Quality against cost", "Agreement by layer and cell", "Accuracy against budget"] {
        assert!(page.contains(title), "{title}");
    }
    let elsewhere = page.replace("http://www.w3.org/2000/svg", "");
    for loads in ["http://", "https://", "src=", "<script", "<link", "@import", "url("] {
        assert!(!elsewhere.contains(loads), "{loads}");
    }
    assert!(page.contains("a &lt;b&gt; &amp; `c`: &lt;script&gt;"), "text is not escaped");
    // The same figures as in the Markdown.
    let text = markdown::render(&r.results, r.environment.as_ref(), None, &plots).unwrap();
    let figures = |line: &str| {
        line.split('|').map(|c| c.trim().to_owned()).filter(|c| c.contains('±')).collect::<Vec<_>>()
    };
    let all: Vec<String> = text.lines().flat_map(figures).collect();
    assert!(all.len() > 10 && all.iter().all(|f| page.contains(&format!(">{f}</td>"))), "{all:?}");
    assert_eq!(page.matches("<table").count(), page.matches("</table>").count());
    let temp = tempfile::tempdir().unwrap();
    r.write(temp.path()).unwrap();
    assert_eq!(std::fs::read_to_string(temp.path().join("report.html")).unwrap(), page);
}

#[test]
fn every_line_of_cells_is_in_the_plots_it_has_figures_for() {
    let r = records();
    let plots = plot::all(&View::new(&r.results)).unwrap();
    let svg = |file: &str| &plots.iter().find(|p| p.file.ends_with(file)).unwrap().svg;
    for name in ["previous-token", "lookahead/eagle3", "lookahead/ideal", "static"] {
        assert!(svg("agreement-by-layer.svg").contains(name), "{name}");
    }
    assert!(
        svg("accuracy-by-budget.svg").contains("dense") && svg("accuracy-by-budget.svg").contains("window")
    );
    // Static moves nothing: no line of zeros.
    assert!(!svg("bytes-by-step.svg").contains("static"));
}

#[test]
fn a_run_without_results_still_has_a_report() {
    let mut r = records();
    r.results.rows.clear();
    r.results.invariants.clear();
    r.results.machine = Default::default();
    r.results.status = Status::Partial;
    assert!(terminal::render(&r.results, WIDTH).contains("PARTIAL"));
    assert!(plot::all(&View::new(&r.results)).unwrap().is_empty());
    r.results.cells.clear();
    r.results.tasks.clear();
    let text = markdown::render(&r.results, None, None, &[]).unwrap();
    assert!(text.contains("none was checked"));
}

#[test]
fn one_sample_has_no_error_and_no_not_a_number() {
    let mut r = records();
    for metric in r.results.rows.iter_mut().flat_map(|row| row.metrics.values_mut()) {
        metric.stderr = None;
    }
    let text = terminal::render(&r.results, WIDTH);
    assert!(!text.contains('±') && !text.contains("NaN"), "{text}");
    assert!(!plot::all(&View::new(&r.results)).unwrap().is_empty());
}

fn open_with(change: impl FnOnce(&mut serde_json::Value)) -> anyhow::Result<Records> {
    let temp = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(golden().join("results.json")).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    change(&mut value);
    std::fs::write(temp.path().join("results.json"), value.to_string()).unwrap();
    Records::open(temp.path())
}

#[test]
fn records_that_cannot_be_read_are_refused_by_name() {
    assert!(open_with(|_| ()).is_ok());
    let e = format!("{:#}", open_with(|v| v["schema_version"] = 99.into()).unwrap_err());
    assert!(e.contains("schema_version is 99") && e.contains("reads 1"), "{e}");
    let e = format!("{:#}", open_with(|v| v["n_done"] = "many".into()).unwrap_err());
    assert!(e.contains("results.json") && e.contains("many"), "{e}");
    let e = format!("{:#}", Records::open(Path::new("/")).unwrap_err());
    assert!(e.contains("no results.json"), "{e}");
}

#[test]
fn records_survive_a_round_trip() {
    let text = std::fs::read_to_string(golden().join("results.json")).unwrap();
    let results: Results = serde_json::from_str(&text).unwrap();
    let again: Results = serde_json::from_str(&serde_json::to_string(&results).unwrap()).unwrap();
    assert_eq!(results, again);
}

#[test]
fn columns_without_a_value_are_left_out() {
    let mut grid = Grid::default();
    grid.words("a", vec![Some("x|y".to_owned()), None]);
    grid.numbers("never", vec![None, None]);
    grid.numbers("b\nc", vec![None, Some("1".to_owned())]);
    assert_eq!(grid.width(), 2);
    assert_eq!(grid.markdown(), "| a   | b c |\n|:----|----:|\n| x/y |   – |\n| –   |   1 |\n");
}
