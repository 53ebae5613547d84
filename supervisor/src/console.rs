//! The output of the command that started a holder.

use quell_index::BuildProgress;

/// Prints messages and progress for the user. The holder calls it from several threads.
pub trait Console: Send + Sync {
    /// Prints a message as one line on standard error. Errors are ignored.
    fn print(&self, message: &str);

    /// Runs `run` and shows its progress until it returns. Stops the work early, with
    /// `BuildProgress::stop`, once `is_unwanted` returns true.
    fn watch(&self, task: &ProgressTask<'_>, is_unwanted: &dyn Fn() -> bool, run: &mut (dyn FnMut() + Send));
}

/// Long work whose progress is shown.
#[derive(Debug, Clone, Copy)]
pub struct ProgressTask<'a> {
    /// The title of the progress bar.
    pub title: &'a str,
    /// The progress of the work, which the console reads.
    pub progress: &'a BuildProgress,
    /// The number of entries of an older index of the same tree, if there is one.
    pub expected_entries: Option<u64>,
    /// Whether the progress is hidden.
    pub quiet: bool,
}
