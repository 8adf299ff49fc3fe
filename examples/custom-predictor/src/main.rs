//! A predictor of one's own, outside the Oasis repository, with the whole command line:
//! `cargo run --release -p custom-predictor -- sweep examples/custom-predictor/sweep.toml`.

mod smoothed;

fn main() -> std::process::ExitCode {
    oasis::cli().with_predictor(smoothed::ENTRY).run()
}
