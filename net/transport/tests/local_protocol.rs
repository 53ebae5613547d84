//! Explores all interleavings of a model of the local channel's protocol: two clients with one slot
//! each, and the service thread. Each step is one atomic operation of
//! docs/formats/local-channel.md. From each state it must be possible to end all calls, otherwise a
//! wake-up was lost.
//!
//! The model is sequentially consistent, as are the operations on `pending`, `watched` and `awake`
//! in the code. It checks the protocol, not the code.

use std::collections::{HashMap, VecDeque};

const CLIENTS: usize = 2;
const CALLS: u8 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Idle,
    Requested,
    Awaited,
    Replied,
}

/// The next step of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ClientStep {
    Request,
    SetPending,
    LoadWatched,
    LoadAwake { watched: bool },
    Ring,
    Await,
    FutexWait,
    Asleep,
    Check,
}

/// The next step of the service thread. `at`: the client that it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ServerStep {
    Top,
    UnwatchStore { at: usize },
    UnwatchLoad { at: usize },
    Poll,
    StoreAsleep,
    LoadPending { at: usize },
    EpollWait,
    StoreAwake,
    Drain { at: usize },
    Reply { at: usize },
    Wake { at: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    step: ClientStep,
    calls: u8,
    slot: Slot,
    pending: bool,
    watched: bool,
    /// Whether the doorbell has been rung since the server last took events.
    rung: bool,
    /// Whether the server has this client in its list.
    is_listed: bool,
    /// Whether the server has taken the request and not replied.
    unanswered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    clients: [Client; CLIENTS],
    server: ServerStep,
    awake: bool,
}

/// A fault of the protocol, which the exploration must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    SleepWithoutLoadingPending,
    UnwatchWithoutLoadingPending,
    RingBeforePending,
    WakeOnlyIfRequested,
    AwaitedNotRecorded,
}

impl State {
    fn start() -> State {
        let client = Client {
            step: ClientStep::Request,
            calls: CALLS,
            slot: Slot::Idle,
            pending: false,
            watched: false,
            rung: false,
            is_listed: false,
            unanswered: false,
        };
        State { clients: [client; CLIENTS], server: ServerStep::Top, awake: true }
    }

    fn is_end(&self) -> bool {
        self.clients.iter().all(|client| client.calls == 0)
    }

    fn client_step(mut self, number: usize, fault: Fault) -> Option<State> {
        let awake = self.awake;
        let client = &mut self.clients[number];
        let after_ring = match fault {
            Fault::RingBeforePending => ClientStep::SetPending,
            _ => ClientStep::Await,
        };
        client.step = match client.step {
            ClientStep::Request if client.calls == 0 => return None,
            ClientStep::Request => {
                client.slot = Slot::Requested;
                if fault == Fault::RingBeforePending {
                    ClientStep::LoadWatched
                } else {
                    ClientStep::SetPending
                }
            }
            ClientStep::SetPending => {
                client.pending = true;
                if fault == Fault::RingBeforePending { ClientStep::Await } else { ClientStep::LoadWatched }
            }
            ClientStep::LoadWatched => ClientStep::LoadAwake { watched: client.watched },
            ClientStep::LoadAwake { watched } if watched && awake => after_ring,
            ClientStep::LoadAwake { .. } => ClientStep::Ring,
            ClientStep::Ring => {
                client.rung = true;
                after_ring
            }
            ClientStep::Await => {
                if client.slot == Slot::Requested && fault != Fault::AwaitedNotRecorded {
                    client.slot = Slot::Awaited;
                }
                ClientStep::Check
            }
            ClientStep::Check if client.slot == Slot::Replied => {
                client.calls -= 1;
                ClientStep::Request
            }
            ClientStep::Check => ClientStep::FutexWait,
            ClientStep::FutexWait if client.slot == Slot::Replied => ClientStep::Check,
            ClientStep::FutexWait => ClientStep::Asleep,
            ClientStep::Asleep => return None,
        };
        Some(self)
    }

    fn take_events(&mut self) {
        for client in self.clients.iter_mut().filter(|client| client.rung) {
            (client.rung, client.watched, client.is_listed) = (false, true, true);
        }
    }

    /// Returns all states that a step of the service thread can lead to.
    fn server_steps(self, fault: Fault) -> Vec<State> {
        let to = |mut state: State, step| {
            state.server = step;
            state
        };
        let next = |at: usize, step: fn(usize) -> ServerStep, end| match at + 1 {
            CLIENTS => end,
            at => step(at),
        };
        let mut changed = self;
        match self.server {
            ServerStep::Top => {
                changed.take_events();
                let unwatch = |state, at| to(state, ServerStep::UnwatchStore { at });
                let after = |state| [to(state, ServerStep::Poll), unwatch(state, 0), unwatch(state, 1)];
                [after(self), after(changed)].concat()
            }
            ServerStep::UnwatchStore { at } if !self.clients[at].is_listed => {
                vec![to(self, ServerStep::Poll)]
            }
            ServerStep::UnwatchStore { at } => {
                changed.clients[at].watched = false;
                vec![to(changed, ServerStep::UnwatchLoad { at })]
            }
            ServerStep::UnwatchLoad { at } => {
                let client = &mut changed.clients[at];
                let stays = client.pending && fault != Fault::UnwatchWithoutLoadingPending;
                (client.watched, client.is_listed) = (stays, stays);
                vec![to(changed, ServerStep::Poll)]
            }
            ServerStep::Poll => {
                vec![to(self, ServerStep::StoreAsleep), to(self, ServerStep::Drain { at: 0 })]
            }
            ServerStep::StoreAsleep => {
                changed.awake = false;
                match fault {
                    Fault::SleepWithoutLoadingPending => vec![to(changed, ServerStep::EpollWait)],
                    _ => vec![to(changed, ServerStep::LoadPending { at: 0 })],
                }
            }
            ServerStep::LoadPending { at } if self.clients[at].is_listed && self.clients[at].pending => {
                vec![to(self, ServerStep::StoreAwake)]
            }
            ServerStep::LoadPending { at } => {
                vec![to(self, next(at, |at| ServerStep::LoadPending { at }, ServerStep::EpollWait))]
            }
            ServerStep::EpollWait if self.clients.iter().all(|client| !client.rung) => Vec::new(),
            ServerStep::EpollWait => {
                changed.take_events();
                vec![to(changed, ServerStep::StoreAwake)]
            }
            ServerStep::StoreAwake => {
                changed.awake = true;
                vec![to(changed, ServerStep::Drain { at: 0 })]
            }
            ServerStep::Drain { at } => {
                let client = &mut changed.clients[at];
                if client.is_listed && client.pending {
                    assert!(matches!(client.slot, Slot::Requested | Slot::Awaited), "{self:?}");
                    (client.pending, client.unanswered) = (false, true);
                }
                vec![to(changed, next(at, |at| ServerStep::Drain { at }, ServerStep::Reply { at: 0 }))]
            }
            ServerStep::Reply { at } => {
                let client = &mut changed.clients[at];
                let end = next(at, |at| ServerStep::Reply { at }, ServerStep::Top);
                if !client.unanswered {
                    return vec![to(changed, end)];
                }
                client.unanswered = false;
                let waking =
                    if fault == Fault::WakeOnlyIfRequested { Slot::Requested } else { Slot::Awaited };
                match std::mem::replace(&mut client.slot, Slot::Replied) == waking {
                    true => vec![to(changed, ServerStep::Wake { at })],
                    false => vec![to(changed, end)],
                }
            }
            ServerStep::Wake { at } => {
                let client = &mut changed.clients[at];
                if client.step == ClientStep::Asleep {
                    client.step = ClientStep::Check;
                }
                vec![to(changed, next(at, |at| ServerStep::Reply { at }, ServerStep::Top))]
            }
        }
    }

    fn steps(self, fault: Fault) -> Vec<State> {
        let mut steps = self.server_steps(fault);
        steps.extend((0..CLIENTS).filter_map(|number| self.client_step(number, fault)));
        steps
    }
}

/// Returns the number of states, and how many of them cannot reach the end.
fn explore(fault: Fault) -> (usize, usize) {
    let mut before: HashMap<State, Vec<State>> = HashMap::from([(State::start(), Vec::new())]);
    let mut queue = VecDeque::from([State::start()]);
    while let Some(state) = queue.pop_front() {
        for next in state.steps(fault) {
            let known = before.entry(next).or_insert_with(|| {
                queue.push_back(next);
                Vec::new()
            });
            known.push(state);
        }
    }
    let mut can_end: HashMap<State, ()> = HashMap::new();
    queue.extend(before.keys().filter(|state| state.is_end()));
    while let Some(state) = queue.pop_front() {
        if can_end.insert(state, ()).is_none() {
            queue.extend(&before[&state]);
        }
    }
    (before.len(), before.len() - can_end.len())
}

#[test]
fn no_interleaving_loses_a_wake_up() {
    let (states, stuck) = explore(Fault::None);
    assert!(states > 10_000, "{states} states are not all");
    assert_eq!(stuck, 0);
}

#[test]
fn the_exploration_finds_faults_of_the_protocol() {
    for fault in [
        Fault::SleepWithoutLoadingPending,
        Fault::UnwatchWithoutLoadingPending,
        Fault::RingBeforePending,
        Fault::WakeOnlyIfRequested,
        Fault::AwaitedNotRecorded,
    ] {
        assert_ne!(explore(fault).1, 0, "{fault:?}");
    }
}
