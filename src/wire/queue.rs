//! What a lane's handles and its task share: the queue, what is sent and has no answer yet, and the stage of its life.
//!
//! Plain state under one lock; nothing waits while it is held, and nobody is told anything under the lock of its own lane.
//! This room may not know fred, nor the connection, of which it has only the numbers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::lane::{Lane, OpToken};
use super::op::{Answer, Failure, Listener, Op, Reply, Trouble};
use crate::clock::Moment;
use crate::error::Source;

/// How many connections are remembered by their ids.
const REMEMBERED: usize = 64;

/// What the handles and the lane's task have in common.
pub(super) struct Shared<T> {
    pub(super) state: Mutex<State<T>>,
    pub(super) waker: AtomicWaker,
    /// The driver is running or about to: it need not be woken.
    pub(super) awake: AtomicBool,
    /// Since when it is about to; 0 when it is not.
    pub(super) woken: AtomicU64,
    /// The number of the present connection.
    pub(super) epoch: AtomicU64,
    /// Their numbers and the server's ids.
    connections: Mutex<VecDeque<(u64, i64)>>,
    pub(super) listener: Arc<dyn Listener<T>>,
    /// Where operations go when the runtime has ended.
    pub(super) fallback: OnceLock<Lane<T>>,
    pub(super) ended: watch::Sender<bool>,
}

pub(super) struct State<T> {
    pub(super) queue: VecDeque<Queued<T>>,
    /// What was handed to fred, by its token.
    pub(super) in_flight: BTreeMap<u64, Flight<T>>,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// `close` was called.
    Closed,
    /// The runtime ended under it.
    Dead,
}

pub(super) struct Queued<T> {
    pub(super) token: OpToken,
    pub(super) op: Op,
    pub(super) tag: T,
    pub(super) since: Moment,
}

pub(super) struct Flight<T> {
    pub(super) tag: T,
    pub(super) handed: Moment,
    pub(super) epoch: u64,
}

impl<T: Send + 'static> Shared<T> {
    /// `epoch` is the number of the connection that the lane begins with.
    pub(super) fn new(epoch: u64, listener: Arc<dyn Listener<T>>) -> Self {
        Shared {
            state: Mutex::new(State { queue: VecDeque::new(), in_flight: BTreeMap::new(), stage: Stage::Open }),
            waker: AtomicWaker::new(),
            awake: AtomicBool::new(true),
            woken: AtomicU64::new(0),
            epoch: AtomicU64::new(epoch),
            connections: Mutex::new(VecDeque::new()),
            listener,
            fallback: OnceLock::new(),
            ended: watch::Sender::new(false),
        }
    }

    pub(super) fn enqueue(&self, queued: Queued<T>) {
        {
            let mut state = self.state.lock();
            if state.stage == Stage::Open {
                state.queue.push_back(queued);
                drop(state);
                return self.wake();
            }
            if state.stage == Stage::Dead
                && let Some(fallback) = self.fallback.get()
            {
                drop(state);
                return fallback.0.enqueue(queued);
            }
        }
        self.refuse(queued);
    }

    /// Moves a queue to another lane's end, or to the lane behind that. What comes back found no lane that takes it.
    /// The caller holds its own lane's lock, so that nothing overtakes on the way.
    pub(super) fn pass_on(&self, queue: &mut VecDeque<Queued<T>>, other: &Shared<T>) -> VecDeque<Queued<T>> {
        if queue.is_empty() {
            return VecDeque::new();
        }
        let mut state = other.state.lock();
        match state.stage {
            Stage::Open => {
                state.queue.append(queue);
                drop(state);
                other.wake();
                VecDeque::new()
            }
            Stage::Dead if other.fallback.get().is_some_and(|next| !std::ptr::eq(&*next.0, self)) => {
                drop(state);
                let next = other.fallback.get().expect("seen just now");
                other.pass_on(queue, &next.0)
            }
            _ => std::mem::take(queue),
        }
    }

    pub(super) fn wake(&self) {
        if !self.awake.swap(true, Ordering::AcqRel) {
            self.woken.store(Moment::now().to_bits(), Ordering::Release);
            self.waker.wake();
        }
    }

    /// Tells that an operation was never sent because the lane is over.
    pub(super) fn refuse(&self, queued: Queued<T>) {
        let trouble = match self.state.lock().stage {
            Stage::Dead => Trouble::Connection(runtime_ended()),
            _ => Trouble::Closed,
        };
        self.not_sent(queued, trouble);
    }

    fn not_sent(&self, queued: Queued<T>, trouble: Trouble) {
        let epoch = self.epoch.load(Ordering::Acquire);
        let flight = Flight { tag: queued.tag, handed: Moment::now(), epoch };
        self.tell(flight, Err(Failure::NotSent(trouble)));
    }

    pub(super) fn tell(&self, flight: Flight<T>, result: Result<Reply, Failure>) {
        let last_epoch = self.epoch.load(Ordering::Acquire);
        let answer = Answer { result, handed: flight.handed, first_epoch: flight.epoch, last_epoch };
        self.listener.answered(flight.tag, answer);
    }

    /// Everything that is queued counts as handed over on connection `epoch` from now on; its operations go to `batch`.
    pub(super) fn take_queued(&self, epoch: u64, batch: &mut Vec<(OpToken, Op)>) {
        let mut state = self.state.lock();
        if state.queue.is_empty() {
            return;
        }
        // One reading for all of them: too early is the safe side.
        let handed = Moment::now();
        let State { queue, in_flight, .. } = &mut *state;
        for queued in queue.drain(..) {
            in_flight.insert(queued.token.0, Flight { tag: queued.tag, handed, epoch });
            batch.push((queued.token, queued.op));
        }
    }

    /// Refuses what has been queued for `limit`.
    pub(super) fn expire(&self, limit: Duration, trouble: &Trouble) {
        let now = Moment::now();
        let mut expired = Vec::new();
        {
            let mut state = self.state.lock();
            while let Some(first) = state.queue.front() {
                if first.since.until(now) < limit {
                    break;
                }
                expired.extend(state.queue.pop_front());
            }
        }
        for queued in expired {
            self.not_sent(queued, trouble.clone());
        }
    }

    /// Remembers how the server calls connection number `epoch`.
    pub(super) fn remember(&self, epoch: u64, id: i64) {
        let mut connections = self.connections.lock();
        connections.push_back((epoch, id));
        if connections.len() > REMEMBERED {
            connections.pop_front();
        }
    }

    pub(super) fn connection_id(&self, epoch: u64) -> Option<i64> {
        let connections = self.connections.lock();
        connections.iter().find(|(e, _)| *e == epoch).map(|(_, id)| *id)
    }

    /// The task is over: asked for, or with the runtime.
    pub(super) fn end(&self) {
        let (in_flight, left, dead) = {
            let mut state = self.state.lock();
            if state.stage == Stage::Open {
                state.stage = Stage::Dead;
            }
            let dead = state.stage == Stage::Dead;
            let mut queue = std::mem::take(&mut state.queue);
            let left = match self.fallback.get() {
                Some(fallback) if dead => self.pass_on(&mut queue, &fallback.0),
                _ => queue,
            };
            (std::mem::take(&mut state.in_flight), left, dead)
        };
        // Nobody wakes it any more.
        self.awake.store(true, Ordering::Release);
        self.woken.store(0, Ordering::Release);
        for flight in in_flight.into_values() {
            let trouble = if dead { Trouble::Connection(runtime_ended()) } else { Trouble::Closed };
            self.tell(flight, Err(Failure::Unknown(trouble)));
        }
        for queued in left {
            self.refuse(queued);
        }
        self.ended.send_replace(true);
        if dead {
            self.listener.ended();
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the runtime of the connection ended")]
struct RuntimeEnded;

fn runtime_ended() -> Source {
    Arc::new(RuntimeEnded)
}
