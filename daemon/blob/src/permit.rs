//! The permit to send replies.

use std::fmt;
use std::sync::Arc;

/// A function that is called before each reply, after the execution of the request. It may block.
/// If it returns false, no reply is sent, and the client treats the result as unknown.
#[derive(Clone)]
pub struct ReplyPermit(pub Arc<dyn Fn() -> bool + Send + Sync>);

impl fmt::Debug for ReplyPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyPermit")
    }
}
