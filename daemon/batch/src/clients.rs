//! Selects the threads that execute a request. The store executes a request of an auxiliary server
//! at once, because it never blocks. A request of a client with the key of a user goes to the
//! threads that find the groups of the user. All others go to the worker threads. A verdict must
//! not wait for the worker threads, because they can wait for the commit of a batch.

use std::sync::Arc;

use quell_batch::{Requester, ServedStore};
use quell_transport::peer::{ClientHandler, ClientIdentity, Handler, MemberId, Reply, Request};

use crate::user_clients::{UserHandlers, user_key};

/// The clients of a server.
pub(crate) struct Clients {
    pub(crate) store: Arc<ServedStore>,
    /// The worker threads.
    pub(crate) workers: Arc<dyn ClientHandler>,
    /// `None` if only the owner can use the store.
    pub(crate) users: Option<UserHandlers>,
}

/// The requests of an auxiliary server.
struct AuxiliaryRequests(Arc<ServedStore>);

impl ClientHandler for Clients {
    fn handler(&self, client: ClientIdentity<'_>) -> Option<Arc<dyn Handler>> {
        if let (Some(users), Some(key)) = (&self.users, user_key(client)) {
            return Some(users(key));
        }
        if !client.has_named_key {
            return self.workers.handler(client);
        }
        // The server has only one named key, the commit key of auxiliary servers. An auxiliary
        // server writes to the directory of the store, so it must run as the owner of the store.
        let is_owner = client
            .user
            .is_none_or(|user| Requester::of_user(user.uid, user.gid, &user.groups) == Requester::Owner);
        is_owner.then(|| Arc::new(AuxiliaryRequests(self.store.clone())) as _)
    }

    fn user(&self, client: ClientIdentity<'_>) -> Option<u32> {
        client.user.map(|user| user.uid).or_else(|| user_key(client).map(|key| key.uid))
    }

    fn ended(&self, client: MemberId) {
        self.store.store().auxiliaries().ended(client.0);
        self.workers.ended(client);
    }
}

impl Handler for AuxiliaryRequests {
    fn handle(&self, request: Request, reply: Reply) {
        let Request { from, bytes, deadline, .. } = request;
        let send = Box::new(move |bytes| reply.send(bytes));
        self.0.store().auxiliaries().execute(from.0, &bytes, deadline, send);
    }
}
