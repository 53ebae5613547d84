//! The context of an operation: the user and the process on whose behalf it is done, and the time
//! until which its answer is useful.

use std::time::Instant;

/// A user, as the kernel identifies one for access checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The effective user id.
    pub uid: u32,
    /// The effective group id.
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
}

/// The context of one operation. A frontend makes it from the request that it serves; a layer
/// passes it on unchanged.
#[derive(Debug, Clone, Copy, Default)]
pub struct Context<'a> {
    /// The user with whose permissions the operation is done; a file that is opened keeps them.
    /// `None`: the permissions of this process.
    ///
    /// A layer on a local backend uses them for operations that open or change something, and only
    /// if this process runs as root. It does not check lookups, attributes and listings: the kernel
    /// has checked access before it calls a frontend.
    pub caller: Option<&'a Caller>,
    /// The process that makes the request, as numbered on its node; 0 if it is not known. A layer
    /// may keep the writes of different processes apart; it uses the number for nothing else.
    pub process: u32,
    /// The operation returns `TimedOut` instead of waiting beyond this time for a server. `None`:
    /// it waits as long as the implementation's own limits allow. System calls on a local file
    /// system cannot be ended early, so an implementation without servers ignores it (see
    /// [`Capabilities::deadlines`](crate::Capabilities::deadlines)).
    pub deadline: Option<Instant>,
}

impl Context<'static> {
    /// The permissions of this process, an unknown process number, and no deadline.
    pub const OWN: Context<'static> = Context { caller: None, process: 0, deadline: None };

    /// Returns the context of a request of `process` with the permissions of this process.
    pub const fn for_process(process: u32) -> Context<'static> {
        Context { process, ..Context::OWN }
    }
}

impl Context<'_> {
    /// Returns whether a truncation keeps the set-id bits of a file, as one by root does
    /// (`CAP_FSETID`). `process_uid` is the effective user of this process.
    pub fn keeps_set_id(&self, process_uid: u32) -> bool {
        self.caller.map_or(process_uid, |caller| caller.uid) == 0
    }
}
