//! The holder's side of the start: the answer to the command, and the streams of that command.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;
use crate::holder::messages::{self, Messages};
use crate::protocol::answer::{Answer, Refusal};
use crate::protocol::plan::Plan;
use crate::protocol::transfer::{Address, Envelope};
use crate::runtime::key::remove_lock;
use crate::waiting::Waiting;

/// The values that every holder has: its plan, its name, the command that started it, its messages.
pub struct HolderContext {
    pub plan: Plan,
    pub address: Address,
    /// The process that waits for the answer.
    pub creator: i32,
    pub messages: Messages,
    /// Watches operations on file systems before the answer.
    pub waiting: Waiting,
}

impl HolderContext {
    pub fn new(envelope: Envelope, messages: Messages) -> HolderContext {
        let Envelope { plan, address, creator, .. } = envelope;
        let limit = plan.answer_timeout_s.map(Duration::from_secs);
        let printed = messages.clone();
        let own_address = address.clone();
        let end = move |failure: Option<Failure>| end_process(&own_address, failure.as_ref());
        let quiet = plan.quiet;
        let print = move |message: &str| {
            if !quiet {
                printed.print(message);
            }
        };
        let waiting = Waiting::for_creator(limit, creator, print, end);
        HolderContext { plan, address, creator, messages, waiting }
    }

    /// Prints a message for the user.
    pub fn print(&self, message: &str) {
        self.messages.print(message);
    }

    /// Returns the file for messages after the command was answered. A view of `quell run` has no
    /// such file; it uses the program's standard error.
    pub fn message_log(&self) -> Option<PathBuf> {
        self.plan.target.mountpoint().map(|_| messages::log_path(&self.address))
    }

    /// Answers that the view is ready. Returns `false` if the command that requested it was killed.
    /// The caller then removes a mount before it releases the lock, so that a user who interrupts
    /// `quell mount` finds no mount later.
    pub fn answer_ready(&self) -> bool {
        // Before the answer, so that a pipe that captures the command's standard error is closed
        // when the command ends.
        if let Some(log) = self.message_log() {
            self.messages.log_to(&log);
        }
        answer(&Answer { refused: None })
    }

    /// Removes an empty log. Called when the process ends.
    pub fn end_messages(&self) {
        if let Some(log) = self.message_log() {
            self.messages.remove_empty_log(&log);
        }
    }

    /// Closes the standard error that this process inherited from the program for which the view
    /// was created. Called when that program has ended: other programs may still use the view, and
    /// must not keep its stream open. A recording keeps the stream, because `quell record` has the
    /// same stream and still waits.
    pub fn release_error_of_creator(&self) {
        if self.plan.target.mountpoint().is_none() && self.plan.recording().is_none() {
            messages::release_error();
        }
    }
}

/// Ends this process before the answer: with a failure, or because the command has ended.
pub fn end_process(address: &Address, failure: Option<&Failure>) {
    match failure {
        Some(failure) => _ = answer(&Answer { refused: Some(Refusal::from(failure)) }),
        // The command cannot remove the lock file. This process still holds the lock.
        None => remove_lock(address),
    }
    std::process::exit(Failure::CANNOT.into());
}

/// Writes the answer to standard output and closes it. Returns `false` if the command that reads
/// the answer was killed.
pub fn answer(answer: &Answer) -> bool {
    let text = serde_json::to_string(answer).expect("an answer is always JSON");
    let written = writeln!(std::io::stdout(), "{text}").and_then(|()| std::io::stdout().flush());
    // The command reads to the end of the pipe, which closing it marks.
    let _ = messages::release_input_and_output();
    written.is_ok()
}
