//! The daemons that run the members.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quell_transport::peer::{self, Transport};
use quell_wire::pool::{DaemonId, MemberId, PoolDaemon, PoolMember};

use crate::failure::Failure;

/// The daemon of each member.
#[derive(Debug)]
pub struct Placement {
    state: Mutex<PlacementState>,
    /// Whether another daemon can run a member later, so that requests are sent again.
    pub has_replicas: bool,
}

#[derive(Debug, Default)]
struct PlacementState {
    daemons: HashMap<MemberId, DaemonId>,
    /// Increases with each change.
    version: u64,
}

impl Placement {
    pub fn new(has_replicas: bool) -> Placement {
        Placement { state: Mutex::default(), has_replicas }
    }

    fn state(&self) -> MutexGuard<'_, PlacementState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the daemons of the members, and connects this daemon to `daemons`.
    pub fn set(
        &self,
        network: &dyn Transport,
        members: &[PoolMember],
        daemons: &[PoolDaemon],
    ) -> Result<(), Failure> {
        let mut addresses = HashMap::new();
        for PoolDaemon { id, address, .. } in daemons {
            let refused = || Failure::wrong_input(format!("{address} is not an address with a port"));
            let parsed: SocketAddr = address.parse().map_err(|_| refused())?;
            addresses.insert(number(*id), parsed);
        }
        let mut state = self.state();
        state.daemons = members.iter().map(|member| (member.id, member.daemon)).collect();
        state.version += 1;
        drop(state);
        // Requests to daemons that are not listed any more fail now, and are sent to others.
        Ok(network.set_members(&addresses)?)
    }

    /// Returns the daemon that runs a member, and the number of changes of the placement.
    pub fn daemon(&self, member: MemberId) -> (Option<DaemonId>, u64) {
        let state = self.state();
        (state.daemons.get(&member).copied(), state.version)
    }
}

/// Returns the number of a daemon in the connections.
pub fn number(daemon: DaemonId) -> peer::MemberId {
    peer::MemberId(u64::from(daemon.0))
}
