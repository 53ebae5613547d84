//! A meeting point in the memory of a process, for nodes that share a launcher: the process exists
//! as long as the launcher, and the nodes find it through a variable of their environment. It
//! stores the links as a directory would, so a node makes no request to a file system.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_threads::lock;
use quell_transport::peer::{
    self, ClientHandler, ClientIdentity, Handler, MemberId, PoolKey, Role, Server, ServerSettings,
};
use quell_vfs::Result;
use quell_wire::job::{REQUEST_BYTES_MAX, Reply, Request, TEXT_BYTES_MAX};
use quell_wire::{decode, encode};

use crate::addresses::own_addresses;
use crate::meeting::{Advertisement, new_key};

/// The largest number of links: one for each job step and list of files at the same time.
const LINKS_MAX: usize = 4096;
/// The largest number of connected nodes. Each node is connected until it has read the link.
const CLIENTS_MAX: usize = 16 << 10;
/// How long a node without a connection is remembered.
const ABSENT_MAX: Duration = Duration::from_secs(1);
/// The time for the answers at the end.
const STOP_LIMIT: Duration = Duration::from_millis(200);

/// A meeting point that this process serves until it is stopped.
pub struct MeetingServer {
    server: Server,
    text: String,
}

impl std::fmt::Debug for MeetingServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MeetingServer").finish_non_exhaustive()
    }
}

impl MeetingServer {
    /// Starts to serve at the addresses of an interface, or at all addresses except those of the
    /// loopback interface.
    ///
    /// # Errors
    /// `Unavailable` or `InvalidInput` if there is no such address; the errors of listen(2).
    pub fn start(interface: Option<&str>) -> Result<MeetingServer> {
        let key = new_key()?;
        let settings = ServerSettings {
            clients_max: CLIENTS_MAX,
            absent_max: ABSENT_MAX,
            ..ServerSettings::new(Role::Job, PoolKey(key))
        };
        let server = Server::start(settings, Arc::new(ServeLinks(Arc::default())))?;
        let mut addresses = Vec::new();
        let mut failed = None;
        for address in own_addresses(interface)? {
            match server.listen_tcp(SocketAddr::new(address, 0)) {
                Ok(address) => addresses.push(address),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed.filter(|_| addresses.is_empty()) {
            return Err(error);
        }
        let text = Advertisement { addresses, key: PoolKey(key) }.encode();
        Ok(MeetingServer { server, text })
    }

    /// Returns the text through which the nodes find the meeting point. It contains the key.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Ends the connections.
    pub fn stop(self) {
        self.server.stop(STOP_LIMIT);
    }
}

#[derive(Default)]
struct Links(Mutex<BTreeMap<u128, String>>);

struct ServeLinks(Arc<Links>);

impl ClientHandler for ServeLinks {
    fn handler(&self, _client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
        Some(self.0.clone())
    }

    fn ended(&self, _client: MemberId) {}
}

impl Handler for Links {
    fn handle(&self, request: peer::Request, reply: peer::Reply) {
        let is_bounded = request.bytes.len() <= REQUEST_BYTES_MAX;
        let decoded = decode::<Request<'_>>(&request.bytes).ok().filter(|_| is_bounded);
        let mut links = lock(&self.0);
        let answer = decoded.and_then(|request| answer(&mut links, &request));
        drop(links);
        reply.send(match &answer {
            Some(text) => encode(&Reply::Link(text.as_deref())),
            None => encode(&Reply::Refused("the request is not for this meeting point")),
        });
    }
}

/// Performs a request, and returns the text that the link had before; `None` for a request that is
/// refused.
fn answer(links: &mut BTreeMap<u128, String>, request: &Request<'_>) -> Option<Option<String>> {
    match *request {
        Request::ReadLink { link } => Some(links.get(&link).cloned()),
        Request::CreateLink { link, text } => {
            let found = links.get(&link).cloned();
            if found.is_none() {
                if text.len() > TEXT_BYTES_MAX || links.len() >= LINKS_MAX {
                    return None;
                }
                links.insert(link, text.to_owned());
            }
            Some(found)
        }
        Request::RemoveLink { link, text } => {
            let found = links.get(&link).cloned();
            if found.as_deref() == Some(text) {
                links.remove(&link);
            }
            Some(found)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_text_of_a_link_stays_until_it_is_removed_by_its_text() {
        let mut links = BTreeMap::new();
        let mut ask = |request: Request<'_>| answer(&mut links, &request);
        let first = Some(Some("first".to_owned()));
        assert_eq!(ask(Request::ReadLink { link: 1 }), Some(None));
        assert_eq!(ask(Request::CreateLink { link: 1, text: "first" }), Some(None));
        assert_eq!(ask(Request::CreateLink { link: 1, text: "second" }), first);
        assert_eq!(ask(Request::ReadLink { link: 2 }), Some(None));
        assert_eq!(ask(Request::RemoveLink { link: 1, text: "second" }), first);
        assert_eq!(ask(Request::ReadLink { link: 1 }), first);
        assert_eq!(ask(Request::RemoveLink { link: 1, text: "first" }), first);
        assert_eq!(ask(Request::ReadLink { link: 1 }), Some(None));
    }

    #[test]
    fn long_texts_many_links_and_other_requests_are_refused() {
        let mut links = BTreeMap::new();
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        assert_eq!(answer(&mut links, &Request::CreateLink { link: 0, text: &long }), None);
        for link in 0..LINKS_MAX as u128 {
            assert_eq!(answer(&mut links, &Request::CreateLink { link, text: "x" }), Some(None));
        }
        let one_more = Request::CreateLink { link: u128::MAX, text: "x" };
        assert_eq!(answer(&mut links, &one_more), None);
        assert_eq!(answer(&mut links, &Request::Files), None);
    }
}
