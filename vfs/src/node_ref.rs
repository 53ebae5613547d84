//! A reference to a node that is returned when it is dropped.

use std::fmt;
use std::ops::Deref;

use crate::attributes::{Attributes, NodeId};
use crate::file_system::FileSystem;

/// The attributes of a node, and one reference to it. While a reference exists, the node keeps its
/// number and its data, even if it is renamed or removed. Dropping this returns the reference.
///
/// A frontend that counts references itself, because its kernel does, takes the reference with
/// [`into_attributes`](Self::into_attributes) and returns it with [`FileSystem::forget`].
pub struct NodeRef<'a> {
    attributes: Attributes,
    /// `None`: the number of this node never ends, so nothing has to be returned.
    counted_by: Option<&'a dyn FileSystem>,
}

impl<'a> NodeRef<'a> {
    /// Takes over one reference that `fs` has counted.
    pub fn counted(fs: &'a dyn FileSystem, attributes: Attributes) -> NodeRef<'a> {
        NodeRef { attributes, counted_by: Some(fs) }
    }

    /// Returns a reference to a node whose number is valid for as long as the file system is
    /// mounted: the root, and every node of an immutable tree.
    pub fn permanent(attributes: Attributes) -> NodeRef<'a> {
        NodeRef { attributes, counted_by: None }
    }

    /// Returns the number of the node, which is valid as long as this reference exists.
    pub fn node(&self) -> NodeId {
        self.attributes.node
    }

    /// Returns the attributes at the time when the reference was made.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// Returns the same reference with other attributes, for a layer that shows a node differently.
    pub fn with_attributes(mut self, attributes: Attributes) -> NodeRef<'a> {
        debug_assert_eq!(attributes.node, self.attributes.node, "a reference to one node");
        self.attributes = attributes;
        self
    }

    /// Passes the reference to the caller, who returns it with [`FileSystem::forget`].
    pub fn into_attributes(mut self) -> Attributes {
        self.counted_by = None;
        self.attributes
    }
}

impl Deref for NodeRef<'_> {
    type Target = Attributes;

    fn deref(&self) -> &Attributes {
        &self.attributes
    }
}

impl Drop for NodeRef<'_> {
    fn drop(&mut self) {
        if let Some(fs) = self.counted_by {
            fs.forget(self.attributes.node, 1);
        }
    }
}

/// Two references are equal if the attributes are.
impl PartialEq for NodeRef<'_> {
    fn eq(&self, other: &NodeRef<'_>) -> bool {
        self.attributes == other.attributes
    }
}

impl fmt::Debug for NodeRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeRef").field(&self.attributes).finish()
    }
}
