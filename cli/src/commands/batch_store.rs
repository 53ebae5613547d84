//! The parts that the commands of `quell batch` have in common.

use std::path::Path;
use std::time::Duration;

use quell_batch_service::{BatchSummary, SummaryState};

use crate::inputs::shown;
use crate::output::{counted, errln};

/// How long a command waits until other processes have closed the store.
pub const WAIT: Duration = Duration::from_secs(10);

/// Prints the number of conflicts of a batch that was committed, if there are any.
pub fn report_conflicts(store: &Path, batch: &BatchSummary, quiet: bool) {
    if let SummaryState::Committed { conflicts, .. } = batch.state
        && conflicts > 0
        && !quiet
    {
        errln!(
            "quell: {}; list them with: quell batch conflicts {} {}",
            counted(conflicts, "conflict", "conflicts"),
            shown(store),
            batch.number,
        );
    }
}
