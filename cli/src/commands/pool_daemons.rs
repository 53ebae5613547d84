//! The daemons that `quell pool up` and `quell pool expand` start: their nodes, launchers and
//! addresses.

use std::net::{IpAddr, ToSocketAddrs};

use quell_supervisor::{Launcher, Listen, NODES_MAX, NewDaemon, Node, host_of, nodes_of_file, nodes_of_job};

use crate::arguments::LaunchArgs;
use crate::failure::Failure;
use crate::inputs::shown;
use crate::installed::daemon;

/// The number of names that are resolved at the same time.
const PARALLEL_NAMES: usize = 64;

/// Returns the daemons to start, on nodes for whose names `is_wanted` returns true. `can_be_alone`:
/// whether a pool with one node can never get a second one, so that its daemon can listen on the
/// loopback interface.
pub fn new_daemons(
    args: &LaunchArgs,
    can_be_alone: bool,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<NewDaemon>, Failure> {
    match args.local {
        Some(daemons) => local_daemons(daemons),
        None => remote_daemons(args, can_be_alone, is_wanted),
    }
}

fn local_daemons(daemons: u16) -> Result<Vec<NewDaemon>, Failure> {
    let daemon = daemon()?;
    let path = daemon.to_str();
    let path = path.ok_or_else(|| Failure::cannot(format!("{} is not valid UTF-8", shown(&daemon))))?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let daemon = NewDaemon { host, command: vec![path.to_owned()], listen: Listen::Loopback };
    Ok(vec![daemon; usize::from(daemons)])
}

fn remote_daemons(
    args: &LaunchArgs,
    can_be_alone: bool,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<NewDaemon>, Failure> {
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
    nodes.retain(|node| is_wanted(&node.name));
    if let Some(count) = args.nodes.map(usize::from) {
        if count > nodes.len() {
            let found = nodes.len();
            return Err(Failure::wrong_input(format!("--nodes {count}: there are only {found} nodes")));
        }
        nodes.truncate(count);
    }
    if nodes.is_empty() {
        return Err(Failure::wrong_input("there are no nodes on which a daemon could be started"));
    }
    let launcher = args.launcher.as_deref().map(Launcher::parse).transpose()?.unwrap_or(found);
    let (daemon, listen) = (daemon()?, addresses(args, can_be_alone, &nodes)?);
    let new = |(node, listen): (&Node, Listen)| {
        let command = launcher.command(node, &daemon)?;
        Ok(NewDaemon { host: node.name.clone(), command, listen })
    };
    nodes.iter().zip(listen).map(new).collect()
}

/// Returns the address on which each daemon listens.
fn addresses(args: &LaunchArgs, can_be_alone: bool, nodes: &[Node]) -> Result<Vec<Listen>, Failure> {
    if let Some(interface) = &args.interface {
        return Ok(vec![Listen::Interface(interface.clone()); nodes.len()]);
    }
    if let Some(text) = &args.network {
        return Ok(vec![network(text)?; nodes.len()]);
    }
    if can_be_alone && nodes.len() == 1 {
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
