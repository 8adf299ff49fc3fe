//! The program `oasis`.

fn main() -> std::process::ExitCode {
    oasis::cli().run()
}
