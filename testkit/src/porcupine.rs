//! Checks histories with porcupine, which searches for an order of the transactions, as a program
//! of its own (`testkit/porcupine`). It shares only the histories with [`crate::serializability`].

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::serializability::{HistoryOperation, HistoryTransaction, Outcome};

/// The compiled program.
#[derive(Debug, Clone)]
pub struct Porcupine(PathBuf);

impl Porcupine {
    /// Returns the program that `$QUELL_PORCUPINE` names, as `scripts/porcupine` has compiled it.
    /// Otherwise prints that the test is skipped.
    pub fn find() -> Option<Porcupine> {
        let found = std::env::var_os("QUELL_PORCUPINE").filter(|path| !path.is_empty());
        if found.is_none() {
            println!("SKIPPED: no porcupine: QUELL_PORCUPINE does not name the program of scripts/porcupine");
        }
        Some(Porcupine(PathBuf::from(found?)))
    }

    /// Returns for each history that it is strictly serializable, or that the search for an order
    /// has not ended in time, which a printed line states. Then only [`crate::serializability`] has
    /// checked it. The last transaction of each history must have read all lists and registers,
    /// after all others have ended.
    pub fn check(&self, histories: &[Vec<HistoryTransaction>]) -> Vec<bool> {
        let text: String = histories.iter().map(|history| describe(history)).collect();
        let mut command = Command::new(&self.0);
        let program = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut program = program.unwrap_or_else(|error| panic!("{}: {error}", self.0.display()));
        let mut input = program.stdin.take().expect("it is a pipe");
        let output = std::thread::scope(|scope| {
            scope.spawn(move || input.write_all(text.as_bytes()).expect("written to porcupine"));
            program.wait_with_output().expect("the output of porcupine")
        });
        assert!(output.status.success(), "porcupine: {}", output.status);
        let lines = String::from_utf8(output.stdout).expect("text");
        let is_accepted = |line: &str| match line {
            "ok" => true,
            "violation" => false,
            "undecided" => {
                println!(
                    "porcupine has not found an order in time; the other checker has checked the history"
                );
                true
            }
            _ => panic!("porcupine: {line}"),
        };
        let results: Vec<bool> = lines.lines().map(is_accepted).collect();
        assert_eq!(results.len(), histories.len(), "porcupine has not checked all histories");
        results
    }
}

/// Returns a history in the format of the program. Each read of the last transaction becomes a
/// transaction of its own, because porcupine divides a history whose transactions concern one
/// object each.
fn describe(history: &[HistoryTransaction]) -> String {
    let mut text = String::new();
    let (last, others) = history.split_last().expect("the last transaction reads everything");
    let reads = last.operations.iter().map(|operation| {
        let operations = vec![operation.clone()];
        HistoryTransaction { operations, ..last.clone() }
    });
    for transaction in others.iter().cloned().chain(reads) {
        let outcome = match transaction.outcome {
            Outcome::Committed => "committed",
            Outcome::Refused => "refused",
            Outcome::Unknown => "unknown",
        };
        let _ = write!(text, "{} {} {outcome}", transaction.begun, transaction.ended);
        for operation in &transaction.operations {
            let _ = match operation {
                HistoryOperation::Append(list, number) => write!(text, " append:{list}:{number}"),
                HistoryOperation::Read(list, numbers) => {
                    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
                    write!(text, " read:{list}:{}", numbers.join(","))
                }
                HistoryOperation::Write(register, number) => write!(text, " write:{register}:{number}"),
                HistoryOperation::ReadRegister(register, number) => {
                    let number = number.map_or(String::new(), |number| number.to_string());
                    write!(text, " get:{register}:{number}")
                }
            };
        }
        text.push('\n');
    }
    text + "\n"
}
