//! Simulated time, which advances only from one timer to the next, and the random numbers, which
//! come from the seed of the simulation.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_executor::{LocalPool, LocalSpawner};
use futures_util::task::LocalSpawnExt;
use quell_testkit::Random;

/// The clock, the timers and the random numbers of a simulation.
pub struct SimulationRuntime {
    now: Cell<Duration>,
    timers: RefCell<BTreeMap<(Duration, u64), Waker>>,
    next_timer: Cell<u64>,
    random: RefCell<Random>,
    spawner: LocalSpawner,
}

/// A wait for a time.
pub struct Sleep {
    runtime: Rc<SimulationRuntime>,
    until: Duration,
    number: u64,
}

impl SimulationRuntime {
    pub fn new(seed: u64, executor: &LocalPool) -> Rc<SimulationRuntime> {
        Rc::new(SimulationRuntime {
            now: Cell::new(Duration::from_secs(1)),
            timers: RefCell::default(),
            next_timer: Cell::new(0),
            random: RefCell::new(Random::new(seed)),
            spawner: executor.spawner(),
        })
    }

    pub fn now(&self) -> Duration {
        self.now.get()
    }

    pub fn below(&self, end: usize) -> usize {
        self.random.borrow_mut().below(end)
    }

    pub fn one_in(&self, n: usize) -> bool {
        self.random.borrow_mut().one_in(n)
    }

    pub fn pick<T: Copy>(&self, elements: &[T]) -> T {
        *self.random.borrow_mut().pick(elements)
    }

    /// Returns a random duration below `max`.
    pub fn below_time(&self, max: Duration) -> Duration {
        Duration::from_micros(self.below(max.as_micros() as usize + 1) as u64)
    }

    pub fn sleep(self: &Rc<SimulationRuntime>, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    pub fn sleep_until(self: &Rc<SimulationRuntime>, until: Duration) -> Sleep {
        self.next_timer.set(self.next_timer.get() + 1);
        Sleep { runtime: Rc::clone(self), until, number: self.next_timer.get() }
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.spawner.spawn_local(task).expect("the executor is running");
    }

    /// Advances the time until `end`, or until `is_done` returns true.
    pub fn run(&self, executor: &mut LocalPool, end: Duration, is_done: impl Fn() -> bool) {
        loop {
            executor.run_until_stalled();
            if is_done() {
                return;
            }
            let next = self.timers.borrow_mut().pop_first();
            match next {
                Some(((time, _), waker)) if time <= end => {
                    self.now.set(self.now().max(time));
                    waker.wake();
                }
                next => {
                    self.timers.borrow_mut().extend(next);
                    self.now.set(end);
                    return;
                }
            }
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.runtime.now() >= self.until {
            return Poll::Ready(());
        }
        let key = (self.until, self.number);
        self.runtime.timers.borrow_mut().insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.runtime.timers.borrow_mut().remove(&(self.until, self.number));
    }
}
