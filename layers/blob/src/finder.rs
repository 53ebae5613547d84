//! The present server of a store in RADOS, as its record states (docs/formats/rados-log.md).

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_rados::{Objects, ServerRecord, ServerState, read_server};
use quell_threads::lock;
use quell_transport::peer::{ClientKey, ClientSettings, Endpoint, Protection, Role};
use quell_vfs::{Error, ErrorKind, Result};

use crate::location::resolve;

/// The time without a connection after which requests fail, so that they are repeated at another
/// server.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(1);

/// Finds the servers of a store in RADOS.
pub(crate) struct Finder {
    objects: Arc<dyn Objects>,
    /// The name of the store, or of one of its groups, in the pool.
    name: String,
    pool: String,
    key: ClientKey,
    is_encrypted: bool,
    /// The number of the server that was found last.
    term: Mutex<u64>,
}

impl fmt::Debug for Finder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finder").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Returns the settings of a client by TCP.
pub(crate) fn tcp_settings(address: SocketAddr, key: ClientKey, is_encrypted: bool) -> ClientSettings {
    let protection = if is_encrypted { Protection::Encryption } else { Protection::Integrity };
    let ClientKey { secret, description } = key;
    let settings = ClientSettings::new(Role::Blob, Endpoint::Tcp(address), secret);
    ClientSettings { description, protection, ..settings }
}

impl Finder {
    /// Finds the servers of the store, or of the group of a store, `name` in a pool, which is
    /// called `pool` in messages. If `is_encrypted` is set, servers that do not encrypt are
    /// refused.
    pub(crate) fn new(
        objects: Arc<dyn Objects>,
        (pool, name): (&str, &str),
        key: ClientKey,
        is_encrypted: bool,
    ) -> Finder {
        let (pool, name) = (pool.to_owned(), name.to_owned());
        Finder { objects, name, pool, key, is_encrypted, term: Mutex::new(0) }
    }

    /// Returns the settings of a connection to the present server.
    ///
    /// # Errors
    /// `Unavailable` if no server serves the store at present. `Unsupported` if the server accepts
    /// no clients by TCP, or does not encrypt although the client requires it. `NotFound` if there
    /// was never a server. The errors of the cluster.
    pub(crate) fn find(&self) -> Result<ClientSettings> {
        let fail = |kind, reason: &str| {
            let source = Some(reason.to_owned().into());
            Err(Error { source, ..Error::new(kind, "find the server of", &self.pool) })
        };
        let Some(found) = read_server(&*self.objects, &self.name)? else {
            return fail(
                ErrorKind::NotFound,
                "there is no store; create one: quell blob serve DIR --rados POOL --listen HOST:PORT",
            );
        };
        match found.state {
            ServerState::Serving if found.address.is_empty() => {
                fail(ErrorKind::Unsupported, "the server accepts no clients by TCP: start it with --listen")
            }
            ServerState::Serving if self.is_encrypted && !found.is_encrypted => {
                fail(ErrorKind::Unsupported, "the server does not encrypt: start it with --encrypt")
            }
            ServerState::Serving => self.settings(&found),
            ServerState::Starting => fail(ErrorKind::Unavailable, "the server is starting"),
            ServerState::Ended => fail(
                ErrorKind::Unavailable,
                "the server has ended; start one: quell blob serve DIR --rados POOL --listen HOST:PORT",
            ),
        }
    }

    /// Returns the settings of a connection to the present server if it is not the server that was
    /// found last.
    ///
    /// # Errors
    /// As for [`find`](Finder::find).
    pub(crate) fn find_next(&self) -> Result<Option<ClientSettings>> {
        let before = *lock(&self.term);
        let settings = self.find()?;
        Ok((*lock(&self.term) != before).then_some(settings))
    }

    fn settings(&self, found: &ServerRecord) -> Result<ClientSettings> {
        let address = resolve(&found.address)?;
        *lock(&self.term) = found.term;
        let settings = tcp_settings(address, self.key.clone(), found.is_encrypted);
        Ok(ClientSettings { unreachable_after: UNREACHABLE_AFTER, ..settings })
    }
}
