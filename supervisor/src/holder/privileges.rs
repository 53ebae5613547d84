//! The privileges of a holder, and the isolation, visibility and rules that result from them.

use quell_index::Rules;
use quell_overlay::Isolation;

use crate::failure::Failure;
use crate::protocol::plan::{Plan, Target, TreesPlan};
use crate::view::options::Visibility;

/// Returns the isolation that this process needs. A process without CAP_SYS_ADMIN needs a user
/// namespace, even if it runs as root.
pub fn isolation() -> Isolation {
    use rustix::thread::{CapabilitySet, capabilities};
    let may_mount = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if may_mount { Isolation::Mount } else { Isolation::UserAndMount }
}

/// Returns whether this process needs a user namespace in order to mount.
pub fn needs_user_namespace() -> bool {
    isolation() == Isolation::UserAndMount
}

/// Moves this process into new namespaces. It must have a single thread.
pub fn isolate(isolation: Isolation) -> Result<(), Failure> {
    quell_overlay::isolate(isolation)
        .map_err(|e| Failure::cannot(format!("{e}; `quell doctor` prints how to allow it")))
}

/// Returns the users to whom the view will be visible. Must be called before this process enters a
/// user namespace.
pub fn visibility(target: &Target) -> Visibility {
    match (isolation(), target) {
        (Isolation::Mount, Target::Mountpoint { .. }) => Visibility::AllUsers,
        (Isolation::Mount, Target::Namespace) => Visibility::RootPrograms,
        // fusermount3 mounts only FUSE views, and their rules decide what other users see.
        (Isolation::UserAndMount, _) | (_, Target::Processes) => Visibility::Caller,
    }
}

/// Returns the rules by which the index layer shows permissions. Refuses `--suid` and `--dev` if
/// they would give privileges to users other than root.
pub fn rules(plan: &Plan, trees: &TreesPlan, index_belongs_to_root: bool) -> Result<Rules, Failure> {
    if trees.suid || trees.dev {
        if isolation() != Isolation::Mount || quell_mount_spec::owners_are_hidden() {
            return Err(Failure::wrong_input(
                "only root, outside of user namespaces, can use --suid and --dev",
            ));
        }
        if !index_belongs_to_root {
            let message =
                "--suid and --dev need an index that belongs to root and that no other user can write to";
            return Err(Failure::wrong_input(message));
        }
    }
    Ok(rules_for(&plan.target, index_belongs_to_root))
}

/// Returns the rules of a view in a namespace, without `--suid` and `--dev`.
pub fn rules_in_namespace(index_belongs_to_root: bool) -> Rules {
    rules_for(&Target::Namespace, index_belongs_to_root)
}

fn rules_for(target: &Target, index_belongs_to_root: bool) -> Rules {
    let hidden = quell_mount_spec::owners_are_hidden();
    let in_namespace = matches!(target, Target::Namespace);
    let owners_unknown = hidden || (in_namespace && isolation() == Isolation::UserAndMount);
    let allows_others = matches!(target, Target::Mountpoint { allow_other: true, .. });
    let serves_others = visibility(target) != Visibility::Caller || allows_others;
    Rules { serves_others, index_is_roots: index_belongs_to_root, owners_unknown }
}
