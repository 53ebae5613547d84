//! `quell pool up`: starts the daemons of a pool on this node or on several.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quell_runtime::{check_pool_name, named_directory};
use quell_supervisor::{
    Compression, Consistency, Launcher, Lifetime, Listen, NODES_MAX, NewMember, NewPool, Node, host_of,
    nodes_of_file, nodes_of_job, signals, start_kept_pool, start_pool,
};

use crate::arguments::{PoolCompression, PoolConsistency, PoolUpArgs};
use crate::failure::Failure;
use crate::inputs::{real_path, shown};
use crate::installed::daemon;
use crate::progress::watch_line;
use crate::trace::filter;

/// The number of partitions of a pool: enough for an even distribution on all daemons.
const PARTITIONS: u16 = 4096;
/// The number of names that are resolved at the same time.
const PARALLEL_NAMES: usize = 64;

pub fn run(args: PoolUpArgs, quiet: bool) -> Result<ExitCode, Failure> {
    check_pool_name(&args.name)?;
    let members = match args.local {
        Some(daemons) => local_members(daemons)?,
        None => remote_members(&args)?,
    };
    if usize::from(args.replicas) > members.len() {
        let daemons = members.len();
        return Err(Failure::wrong_input(format!(
            "--replicas {} needs as many daemons; the pool would have {daemons}",
            args.replicas
        )));
    }
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|e| Failure::wrong_input(format!("{}: {e}", shown(path))))
    };
    let directory = match (&args.dir, args.local) {
        // The same directory as that of a shell in which a link leads to it.
        (Some(directory), Some(_)) => Some(real_path(directory)?),
        (Some(directory), None) => Some(absolute(directory)?),
        (None, _) => None,
    };
    let new = NewPool {
        name: args.name,
        members,
        directory,
        memory_bytes: args.memory,
        runtime: named_directory().map(|path| absolute(&path)).transpose()?,
        chunk_bytes: args.chunk_kib << 10,
        partitions: PARTITIONS,
        consistency: match args.consistency {
            PoolConsistency::Sync => Consistency::Synchronous,
            PoolConsistency::Commit => Consistency::Commit,
        },
        replicas: args.replicas,
        encrypts: args.encrypt,
        compression: match args.compress {
            PoolCompression::None => Compression::None,
            PoolCompression::Lz4 => Compression::Lz4,
            PoolCompression::Zstd => Compression::Zstd,
        },
        // The keeper replaces daemons that fail.
        lifetime: if args.local.is_some() && args.replicas == 1 {
            Lifetime::Unlimited
        } else {
            Lifetime::Input
        },
        is_detached: args.local.is_some(),
        timeout_ms: u64::from(args.timeout) * 1000,
        log_filter: filter()?,
    };
    let count = new.members.len();
    let line = |elapsed: Duration| format!("starting {count} daemons: {} s", elapsed.as_secs());
    watch_line(&line, quiet, &|| (), || match new.lifetime {
        Lifetime::Input => start_kept_pool(&new),
        Lifetime::Unlimited => {
            let interrupted = signals()?;
            start_pool(&new, &|| interrupted.load(Ordering::SeqCst)).map(|launched| launched.release())
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn local_members(daemons: u16) -> Result<Vec<NewMember>, Failure> {
    let daemon = daemon()?;
    let path = daemon.to_str();
    let path = path.ok_or_else(|| Failure::cannot(format!("{} is not valid UTF-8", shown(&daemon))))?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let member = NewMember { host, command: vec![path.to_owned()], listen: Listen::Loopback };
    Ok(vec![member; usize::from(daemons)])
}

fn remote_members(args: &PoolUpArgs) -> Result<Vec<NewMember>, Failure> {
    let (mut nodes, found) = match &args.hosts {
        Some(file) => (nodes_of_file(file)?, Launcher::Ssh),
        None => match nodes_of_job()? {
            Some(job) => (job.nodes, job.launcher),
            None => {
                return Err(Failure::wrong_input(
                    "this command does not run in a job of Slurm, PBS or Flux; use --hosts FILE, or --local N for daemons on this node only",
                ));
            }
        },
    };
    if let Some(count) = args.nodes.map(usize::from) {
        if count > nodes.len() {
            let found = nodes.len();
            return Err(Failure::wrong_input(format!("--nodes {count}: there are only {found} nodes")));
        }
        nodes.truncate(count);
    }
    if nodes.is_empty() {
        return Err(Failure::wrong_input("the list of nodes is empty"));
    }
    let launcher = args.launcher.as_deref().map(Launcher::parse).transpose()?.unwrap_or(found);
    let (daemon, listen) = (daemon()?, addresses(args, &nodes)?);
    let member = |(node, listen): (&Node, Listen)| {
        let command = launcher.command(node, &daemon)?;
        Ok(NewMember { host: node.name.clone(), command, listen })
    };
    nodes.iter().zip(listen).map(member).collect()
}

/// Returns the address on which each daemon listens.
fn addresses(args: &PoolUpArgs, nodes: &[Node]) -> Result<Vec<Listen>, Failure> {
    if let Some(interface) = &args.interface {
        return Ok(vec![Listen::Interface(interface.clone()); nodes.len()]);
    }
    if let Some(text) = &args.network {
        return Ok(vec![network(text)?; nodes.len()]);
    }
    if nodes.len() == 1 {
        return Ok(vec![Listen::Loopback]);
    }
    let mut listen = Vec::with_capacity(nodes.len().min(NODES_MAX));
    for nodes in nodes.chunks(PARALLEL_NAMES) {
        std::thread::scope(|scope| {
            let resolving: Vec<_> = nodes.iter().map(|node| scope.spawn(|| resolve(node))).collect();
            // A name that this node cannot resolve may be defined in the configuration of the
            // launcher.
            listen.extend(resolving.into_iter().map(|thread| thread.join().expect("it does not panic")));
        });
    }
    let is_loopback = |listen: &Listen| match listen {
        Listen::Host { addresses, .. } => {
            !addresses.is_empty() && addresses.iter().all(|address| address.is_loopback())
        }
        _ => false,
    };
    match listen.iter().all(is_loopback) {
        true => Ok(vec![Listen::Loopback; nodes.len()]),
        false => Ok(listen),
    }
}

fn resolve(node: &Node) -> Listen {
    let name = host_of(&node.name).to_owned();
    let addresses = (name.as_str(), 0).to_socket_addrs().into_iter().flatten();
    let mut addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
    addresses.dedup();
    Listen::Host { name, addresses }
}

fn network(text: &str) -> Result<Listen, Failure> {
    let refused =
        || Failure::wrong_input(format!("--network {}: use ADDRESS/BITS, as in 10.1.0.0/16", shown(text)));
    let (address, bits) = text.split_once('/').ok_or_else(refused)?;
    let address: IpAddr = address.parse().map_err(|_| refused())?;
    let prefix_bits: u8 = bits.parse().map_err(|_| refused())?;
    match prefix_bits <= if address.is_ipv4() { 32 } else { 128 } {
        true => Ok(Listen::Network { address, prefix_bits }),
        false => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_an_address_and_a_number_of_bits() {
        assert!(matches!(network("10.1.0.0/16"), Ok(Listen::Network { prefix_bits: 16, .. })));
        for bad in ["", "10.1.0.0", "10.1.0.0/33", "10.1.0.0/-1", "fd00::/129", "n1/8"] {
            assert!(network(bad).is_err(), "{bad}");
        }
    }
}
