//! Random operations on a small tree.

use quell_batch_service::{InodeChange, NameSpace, NewNode, ROOT, Timestamp, XattrChange};
use quell_testkit::Random;
use quell_vfs::{Error, ErrorKind, Kind, Rename, Result, SetXattr};

use super::{FILE, LATER, NEW, NOW, content};

/// An operation with paths.
#[derive(Debug, Clone)]
pub enum Operation {
    Create(String, NewNode),
    Link(String, String),
    Remove(String),
    RemoveDir(String),
    Rename(String, String, Rename),
    Change(String, InodeChange),
}

fn at<'a>(names: &dyn NameSpace, path: &'a str) -> Result<(u64, &'a [u8])> {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut dir = ROOT;
    for part in above.split('/').filter(|part| !part.is_empty()) {
        let found = names.lookup(dir, part.as_bytes())?;
        let found = found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))?.inode;
        if found.kind()? != Kind::Dir {
            return Err(Error::new(ErrorKind::NotADirectory, "look up", path));
        }
        dir = found.number;
    }
    Ok((dir, name.as_bytes()))
}

impl Operation {
    /// Returns the same operation with all paths below a directory.
    pub fn below(self, dir: &str) -> Operation {
        let below = |path: String| format!("{dir}/{path}");
        match self {
            Operation::Create(path, new) => Operation::Create(below(path), new),
            Operation::Link(from, to) => Operation::Link(below(from), below(to)),
            Operation::Remove(path) => Operation::Remove(below(path)),
            Operation::RemoveDir(path) => Operation::RemoveDir(below(path)),
            Operation::Rename(from, to, mode) => Operation::Rename(below(from), below(to), mode),
            Operation::Change(path, change) => Operation::Change(below(path), change),
        }
    }

    /// Runs the operation in a name space.
    pub fn run(&self, names: &dyn NameSpace) -> Result<()> {
        let node = |path: &str| {
            let (dir, name) = at(names, path)?;
            let found = names.lookup(dir, name)?;
            found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look up", path))
        };
        match self {
            Operation::Create(path, new) => {
                let (dir, name) = at(names, path)?;
                let attributes = if *new == NewNode::Dir { NEW } else { FILE };
                names.create(dir, name, new.clone(), attributes, NOW).map(drop)
            }
            Operation::Link(from, to) => {
                let (dir, name) = at(names, to)?;
                let found = node(from)?;
                names.link((found.inode.number, &found.place), dir, name, LATER).map(drop)
            }
            Operation::Remove(path) => {
                let (dir, name) = at(names, path)?;
                names.remove(dir, name, LATER).map(drop)
            }
            Operation::RemoveDir(path) => {
                let (dir, name) = at(names, path)?;
                names.remove_dir(dir, name, LATER).map(drop)
            }
            Operation::Rename(from, to, mode) => {
                names.rename(at(names, from)?, at(names, to)?, *mode, LATER).map(drop)
            }
            Operation::Change(path, change) => {
                let found = node(path)?;
                names.change((found.inode.number, &found.place), change, LATER).map(drop)
            }
        }
    }
}

/// Returns a path of at most three names.
fn path(random: &mut Random) -> String {
    let names = ["a", "b", "c"];
    let depth = *random.pick(&[1, 1, 1, 2, 2, 3]);
    (0..depth).map(|_| *random.pick(&names)).collect::<Vec<_>>().join("/")
}

pub fn operation(random: &mut Random) -> Operation {
    let modes = [Rename::Replace, Rename::Replace, Rename::Keep, Rename::Exchange];
    match random.below(16) {
        0..=3 => Operation::Create(path(random), NewNode::Dir),
        4..=6 => Operation::Create(path(random), NewNode::File),
        7 => Operation::Create(path(random), NewNode::Symlink(b"target".to_vec())),
        8 => Operation::Link(path(random), path(random)),
        9 => Operation::Remove(path(random)),
        10 => Operation::RemoveDir(path(random)),
        11..=13 => Operation::Rename(path(random), path(random), *random.pick(&modes)),
        _ => {
            let number = random.below(100) as u8;
            let default = InodeChange::default();
            let change = match random.below(4) {
                0 => InodeChange { permissions: Some(0o700 | u32::from(number % 8)), ..default },
                1 => InodeChange { modified: Some(Timestamp(number.into(), 0)), ..default },
                2 => {
                    let set = XattrChange::Set(b"user.x".to_vec(), vec![number], SetXattr::Any);
                    InodeChange { xattr: Some(set), ..default }
                }
                _ => content(format!("content {number}").as_bytes()),
            };
            Operation::Change(path(random), change)
        }
    }
}
