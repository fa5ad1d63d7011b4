//! What this client holds and who waits for what: pure state. Nothing here awaits, and nothing here knows a connection; an
//! operation leaves through [`Io`], a wake-up through [`State::after`].

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::task::Waker;

use tokio::sync::oneshot;

use super::Io;
use super::call::{Call, Outcome};
use super::hold::HoldShared;
use crate::clock::Moment;
use crate::error::{Error, HoldEnd};
use crate::lease::Lease;
use crate::names::LockName;
use crate::owner::Owner;
use crate::wire::{OpToken, ThreadId};

/// Whom an unlock answers.
pub(crate) type UnlockSender = oneshot::Sender<Result<(), Error>>;

/// Everything that is kept under the engine's one lock.
pub(crate) struct State {
    pub(super) keys: HashMap<Arc<LockName>, KeyState>,
    pub(super) holds: HashMap<ThreadId, Hold>,
    pub(super) channels: HashMap<Box<str>, Arc<LockName>>,
    pub(super) departed: Departed,
    pub(super) timers: Timers,
    /// No new calls; what is held is being released.
    pub(super) closed: bool,
    /// Told to others once the lock is free again.
    pub(super) after: Vec<After>,
}

/// What is done once the engine's lock is free again: wakers may run code that comes back here.
pub(crate) enum After {
    Wake(Waker),
    Unlocked(UnlockSender, Result<(), Error>),
}

/// One key that somebody of this process holds, asks for or waits for.
#[derive(Default)]
pub(crate) struct KeyState {
    /// The hold of this process that is certain, if any. At most one: the lock is exclusive.
    pub(super) active: Option<ThreadId>,
    /// Who waits, in the order of arrival.
    pub(super) queue: VecDeque<Arc<Call>>,
    /// The attempt in flight for the head of the queue: one contender per key.
    pub(super) asking: Option<ThreadId>,
    /// A reason to try again came while an attempt was in flight.
    pub(super) again: bool,
    /// When the head tries again.
    pub(super) try_at: Option<Moment>,
    /// Attempts in a row that got no answer, or one that passes.
    pub(super) failures: u32,
    /// When the server last said that somebody else holds it.
    pub(super) held_seen: Option<Moment>,
    /// When the server last answered at all.
    pub(super) replied: Option<Moment>,
    pub(super) hearing: Hearing,
    /// Messages on the channel that are echoes of our own releases.
    pub(super) echoes: u32,
    /// The last release was heard by subscribers other than ours.
    pub(super) foreign: bool,
    /// Grants in a row to this process while others listened.
    pub(super) streak: u32,
    /// Giving way to other processes: no attempt until the release is answered and a grace has passed.
    pub(super) giving_way: bool,
    /// Idle and kept until then: for the subscription, and for what is known of others.
    pub(super) linger_until: Option<Moment>,
    /// A timer for that is under way: one is enough.
    pub(super) linger_timer: bool,
}

/// The subscription of one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hearing {
    #[default]
    None,
    /// Asked for, not confirmed.
    Wanted,
    Confirmed,
    /// The server forbids it: poll.
    Deaf,
}

/// One holder field, from the first attempt until it is certainly gone.
pub(crate) struct Hold {
    pub(super) name: Arc<LockName>,
    pub(super) owner: Owner,
    pub(super) shared: Arc<HoldShared>,
    pub(super) phase: Phase,
    /// What the first acquire asked for.
    pub(super) lease: Lease,
    /// Live holds: guards, forgotten ones, grants not yet picked up.
    pub(super) guards: u32,
    /// How many of them are watched.
    pub(super) watched: u32,
    /// Forgotten ones: whether each is watched.
    pub(super) forgotten: Vec<bool>,
    /// What the server counts; `None` while that is not known.
    pub(super) server_count: Option<u32>,
    /// The one operation in flight that changes the count.
    pub(super) settling: Option<Settling>,
    /// Nested calls that wait for their turn to be counted.
    pub(super) joiners: Vec<Arc<Call>>,
    /// Partial unlocks that wait for theirs.
    pub(super) leavers: Vec<UnlockSender>,
    pub(super) settle_failures: u32,
    pub(super) renew: Renew,
    /// When the keeper looks at it next: one timer per hold counts, others are stale.
    pub(super) look_at: Option<Moment>,
    /// The acquire, while it may still be taken back unsent.
    pub(super) token: Option<OpToken>,
}

#[derive(Default)]
pub(crate) struct Renew {
    /// When the next renewal is due; `None` while unwatched.
    pub(super) at: Option<Moment>,
    pub(super) in_flight: bool,
    pub(super) failures: u32,
    /// The watchdog lets go after this.
    pub(super) until: Option<Moment>,
}

/// The count operation in flight: what it sets and whom it answers.
pub(crate) struct Settling {
    pub(super) count: u32,
    pub(super) lease: Lease,
    pub(super) joiners: Vec<Arc<Call>>,
    pub(super) leavers: Vec<UnlockSender>,
}

pub(crate) enum Phase {
    /// The acquire is in flight. `None`: nobody wants it any more; a release was sent behind it.
    Asked {
        call: Option<Arc<Call>>,
        released_behind: bool,
    },
    Held,
    Releasing(Releasing),
    /// The acquire may or may not have been executed: released until it is certainly gone.
    Doubtful(Doubt),
}

pub(crate) struct Releasing {
    pub(super) waiters: Vec<UnlockSender>,
    pub(super) started: Moment,
    pub(super) tries: u32,
    pub(super) in_flight: bool,
    pub(super) retry_at: Moment,
    /// A hold that nobody ever had: its release is nobody's news.
    pub(super) silent: bool,
}

pub(crate) struct Doubt {
    pub(super) since: Moment,
    /// The first connection that is not known to be dead of those that may carry the acquire.
    pub(super) clean_from: u64,
    /// The last connection of those: the acquire is not written any more once it has failed.
    pub(super) last: u64,
    /// Answers outstanding to the kills of the connections before `killed_to`.
    pub(super) kills: u32,
    pub(super) killed_to: u64,
    /// One of them got no answer.
    pub(super) kill_failed: bool,
    /// An old connection could not be killed: only time helps.
    pub(super) unkillable: bool,
    pub(super) in_flight: bool,
    pub(super) tries: u32,
    pub(super) retry_at: Moment,
}

impl Releasing {
    /// The release of a hold that nobody ever had, sent already.
    pub(super) fn silent(now: Moment) -> Self {
        Releasing { waiters: Vec::new(), started: now, tries: 1, in_flight: true, retry_at: now, silent: true }
    }
}

impl State {
    pub(super) fn new() -> Self {
        State {
            keys: HashMap::new(),
            holds: HashMap::new(),
            channels: HashMap::new(),
            departed: Departed::default(),
            timers: Timers::default(),
            closed: false,
            after: Vec::new(),
        }
    }

    /// Tells a call its outcome; `Err` gives the outcome back if nobody waits for it.
    pub(super) fn finish(&mut self, call: &Call, outcome: Outcome) -> Result<(), Outcome> {
        let waker = call.finish(outcome)?;
        self.after.extend(waker.map(After::Wake));
        Ok(())
    }

    /// Tells a call that it failed; one that has gone does not care.
    pub(super) fn fail(&mut self, call: &Call, error: Error) {
        let _ = self.finish(call, Err(error));
    }

    pub(super) fn unlocked(&mut self, waiters: Vec<UnlockSender>, result: &Result<(), Error>) {
        self.after.extend(waiters.into_iter().map(|w| After::Unlocked(w, result.clone())));
    }

    /// The certain hold of `owner` on `name`, if it has one.
    pub(super) fn held_by(&self, name: &LockName, owner: Owner) -> Option<ThreadId> {
        let thread = self.keys.get(name)?.active?;
        let hold = self.holds.get(&thread)?;
        (hold.owner == owner && hold.shared.end().is_none()).then_some(thread)
    }

    /// Forgets a key that nobody has to do with any more.
    pub(super) fn tidy(&mut self, io: &Io, name: &Arc<LockName>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        if key.active.is_some() || key.asking.is_some() || !key.queue.is_empty() {
            key.linger_until = None;
            return;
        }
        if key.hearing == Hearing::None && !key.foreign {
            self.keys.remove(name);
            return;
        }
        let until = Moment::now().after(super::LINGER);
        key.linger_until = Some(until);
        if !std::mem::replace(&mut key.linger_timer, true) {
            self.timers.add(io, until, Timer::Linger(name.clone()));
        }
    }
}

impl Hold {
    pub(super) fn live(&self) -> u32 {
        let settling = self.settling.as_ref().map_or(0, |s| s.joiners.len());
        self.guards + (self.joiners.len() + settling) as u32
    }

    /// When the keeper has to look at it next, while it is held.
    pub(super) fn next_look(&self) -> Moment {
        let deadline = self.shared.deadline();
        self.renew.at.map_or(deadline, |at| at.min(deadline))
    }
}

/// How forgotten holds ended that nobody has unlocked yet, so that an unlock can say what happened.
#[derive(Default)]
pub(crate) struct Departed {
    ends: HashMap<(Owner, Arc<LockName>), HoldEnd>,
    order: VecDeque<(Owner, Arc<LockName>)>,
}

impl Departed {
    const MOST: usize = 1024;

    pub(super) fn add(&mut self, owner: Owner, name: Arc<LockName>, end: HoldEnd) {
        if self.ends.insert((owner, name.clone()), end).is_none() {
            self.order.push_back((owner, name));
        }
        while self.order.len() > Self::MOST {
            if let Some(oldest) = self.order.pop_front() {
                self.ends.remove(&oldest);
            }
        }
    }

    pub(super) fn take(&mut self, owner: Owner, name: &Arc<LockName>) -> Option<HoldEnd> {
        let end = self.ends.remove(&(owner, name.clone()))?;
        self.order.retain(|(o, n)| !(*o == owner && n == name));
        Some(end)
    }
}

/// Something to look at, at some moment. What is to be done then is read from the state, never from the timer.
#[derive(Clone)]
pub(crate) enum Timer {
    Hold(ThreadId),
    Key(Arc<LockName>),
    Linger(Arc<LockName>),
    Wait(Weak<Call>),
    /// Only that the keeper is awake then.
    Alarm,
}

/// Timers on their way to the wheel. Adding one is a push; the keeper is woken only if it would sleep past it.
#[derive(Default)]
pub(crate) struct Timers {
    inbox: Vec<(Moment, Timer)>,
    /// When the keeper wakes next; `None`: it sleeps until called.
    pub(super) next_wake: Option<Moment>,
    compact_at: usize,
}

impl Timers {
    const ROOM: usize = 1024;

    pub(super) fn add(&mut self, io: &Io, at: Moment, timer: Timer) {
        self.inbox.push((at, timer));
        if self.next_wake.is_none_or(|next| at < next) {
            self.next_wake = Some(at);
            io.wake_keeper();
        }
    }

    pub(super) fn take(&mut self) -> Vec<(Moment, Timer)> {
        self.compact_at = Self::ROOM;
        std::mem::take(&mut self.inbox)
    }
}

impl State {
    /// Has the keeper look at a hold at `at`, or before.
    pub(super) fn look_at_hold_at(&mut self, io: &Io, thread: ThreadId, at: Moment) {
        let Some(hold) = self.holds.get_mut(&thread) else { return };
        if hold.look_at.is_none_or(|look| at < look) {
            hold.look_at = Some(at);
            self.timers.add(io, at, Timer::Hold(thread));
        }
    }

    /// Whether a timer still has something to look at.
    pub(super) fn is_live(&self, timer: &Timer) -> bool {
        match timer {
            Timer::Hold(thread) => self.holds.contains_key(thread),
            Timer::Key(name) | Timer::Linger(name) => self.keys.contains_key(name),
            Timer::Wait(call) => call.strong_count() > 0,
            Timer::Alarm => true,
        }
    }

    /// Drops the tombstones in the inbox when they may outnumber the living.
    pub(super) fn compact_timers(&mut self) {
        if self.timers.inbox.len() < self.timers.compact_at.max(Timers::ROOM) {
            return;
        }
        let mut inbox = std::mem::take(&mut self.timers.inbox);
        inbox.retain(|(_, timer)| self.is_live(timer));
        self.timers.compact_at = inbox.len() * 2 + Timers::ROOM;
        self.timers.inbox = inbox;
    }
}
