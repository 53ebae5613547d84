//! The views and mounts that a holder serves, and the steps of a holder from its answer to its end.

use std::fs::File;

use crate::failure::Failure;
use crate::holder::handshake::{HolderContext, answer};
use crate::protocol::answer::{Answer, Refusal};
use crate::socket::client::sweep;

/// A view or a mount that exists, and that this process serves.
pub trait Served {
    /// Reports the start of a recording to the command that waits for it, if there is one.
    fn report_start(&self) -> Result<(), Failure>;

    /// Returns whether the view is at a mount point.
    fn is_mounted(&self) -> bool;

    /// Removes the mount and the socket at once. The caller holds the lock.
    fn abandon(self, context: &HolderContext);

    /// Serves until the last user has ended, and finishes a recording.
    fn serve(self, context: &HolderContext) -> Result<(), Failure>;
}

/// Answers the command, serves, and ends. `lock`: the lock of the holder's key, released when other
/// processes can find the holder.
pub fn hold<V: Served>(
    served: Result<V, Failure>,
    lock: File,
    context: &HolderContext,
) -> Result<(), Failure> {
    let served = match served {
        Ok(served) => served,
        Err(failure) => {
            answer(&Answer { refused: Some(Refusal::from(&failure)) });
            return Ok(());
        }
    };
    served.report_start()?;
    if !context.answer_ready() && served.is_mounted() {
        served.abandon(context);
        context.end_messages();
        return Ok(());
    }
    drop(lock);
    sweep(&context.address.directory);
    let ended = served.serve(context);
    context.end_messages();
    ended
}
