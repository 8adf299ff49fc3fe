//! Clocks of a GPU, if `nvidia-smi` answers.

use schemars::JsonSchema;
use serde::Serialize;
use std::process::{Child, Command, Stdio};

/// As `nvidia-smi` says.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Clocks {
    /// Multiprocessors, MHz.
    pub sm_mhz: f64,
    /// Memory, MHz.
    pub memory_mhz: f64,
    /// Degrees Celsius.
    pub celsius: f64,
    /// Watts.
    pub watts: f64,
}

/// A question that is being answered beside other work.
pub struct Asked(Child);

/// Asks about the first GPU; none if there is no `nvidia-smi`.
pub fn ask() -> Option<Asked> {
    let query = "--query-gpu=clocks.sm,clocks.mem,temperature.gpu,power.draw";
    let args = [query, "--format=csv,noheader,nounits", "--id=0"];
    let child = Command::new("nvidia-smi").args(args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    child.ok().map(Asked)
}

impl Asked {
    /// The answer, if it is one.
    pub fn answer(self) -> Option<Clocks> {
        let out = self.0.wait_with_output().ok()?;
        parse(&String::from_utf8_lossy(&out.stdout))
    }
}

fn parse(line: &str) -> Option<Clocks> {
    let numbers: Vec<f64> =
        line.lines().next()?.split(',').map(|x| x.trim().parse()).collect::<Result<_, _>>().ok()?;
    let [sm_mhz, memory_mhz, celsius, watts] = numbers[..] else { return None };
    Some(Clocks { sm_mhz, memory_mhz, celsius, watts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_four_numbers() {
        let clocks = Clocks { sm_mhz: 1980.0, memory_mhz: 3201.0, celsius: 41.0, watts: 312.5 };
        assert_eq!(parse("1980, 3201, 41, 312.50\n"), Some(clocks));
        assert_eq!(parse("1980, [N/A], 41, 312.50\n"), None);
        assert_eq!(parse(""), None);
    }
}
