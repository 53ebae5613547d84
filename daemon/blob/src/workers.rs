//! The execution of the requests of clients: reads, and the checks and large writes of transactions
//! before their commit.

use std::sync::Arc;

use quell_blob_service::{ClientId, Permissions, Sessions};
use quell_transport::peer::{ClientIdentity, MemberId, Request, Service, Taken};

use crate::committer::Waker;
use crate::permit::ReplyPermit;

/// Executes requests.
pub(crate) struct Requests {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) committer: Waker,
    pub(crate) permit: Option<ReplyPermit>,
}

impl Service for Requests {
    type Rights = Permissions;

    fn rights(&self, client: ClientIdentity<'_>) -> Option<Permissions> {
        Permissions::of_key(client.description).ok()
    }

    fn execute(&self, taken: Vec<Taken<Permissions>>) {
        let mut has_commits = false;
        for Taken { request, rights, reply } in taken {
            let client = ClientId(request.from.0);
            let permit = self.permit.clone();
            let replied = Box::new(move |bytes| {
                if permit.is_none_or(|permit| (permit.0)()) {
                    reply.send(bytes);
                }
            });
            let Request { bytes, reply_bytes_max, .. } = request;
            has_commits |= self.sessions.execute(client, &rights, &bytes, reply_bytes_max, replied);
        }
        if has_commits {
            self.committer.wake();
        }
    }

    fn ended(&self, client: MemberId) {
        self.sessions.end(ClientId(client.0));
    }
}
