//! This process and its node, and the source of random numbers.

use crate::format::Holder;
use crate::stores::scratch::Scratch;

/// This process and its node, and the source of random numbers.
pub struct Host {
    /// This process, as the `open` names of its writers contain it.
    pub holder: Holder,
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// Returns random numbers. Containers and writers of all nodes must have different numbers.
    pub random: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Returns true if the process is known to be dead. Returns false if its state is unknown, as
    /// for processes of other nodes.
    pub is_gone: Box<dyn Fn(&Holder) -> bool + Send + Sync>,
    /// Creates the temporary files of indexes that do not fit into memory.
    pub scratch: Scratch,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl Host {
    pub(crate) fn random_number(&self) -> u128 {
        u128::from((self.random)()) << 64 | u128::from((self.random)())
    }
}
