//! The state, a model of what the scripts do to one key, and everything that can happen to both. Real servers are for
//! `tests/`.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use proptest::prelude::*;

use super::super::Io;
use super::super::call::{Call, Found, Grant, Patience, Request};
use super::super::state::{Phase, State};
use crate::clock::Moment;
use crate::config::Config;
use crate::lease::Lease;
use crate::names::LockName;
use crate::owner::Owner;
use crate::wire::{Answer, Failure, Op, Renewal, Reply, ThreadId, Trouble};

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Call {
        owner: usize,
        once: bool,
        watched: bool,
    },
    /// A call whose lease is over before it is certain.
    BriefCall {
        owner: usize,
    },
    /// The oldest operation in flight is executed and answered.
    Deliver,
    /// It gets no answer; executed or not.
    LoseAnswer {
        executed: bool,
    },
    Poll(usize),
    DropCall(usize),
    DropGuard(usize),
    /// Somebody removes the key.
    Remove,
    Message,
    /// Time passes for whatever waits to be tried again.
    Tick,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3usize, any::<bool>(), any::<bool>())
            .prop_map(|(owner, once, watched)| Step::Call { owner, once, watched }),
        1 => (0..3usize).prop_map(|owner| Step::BriefCall { owner }),
        8 => Just(Step::Deliver),
        1 => any::<bool>().prop_map(|executed| Step::LoseAnswer { executed }),
        5 => any::<usize>().prop_map(Step::Poll),
        2 => any::<usize>().prop_map(Step::DropCall),
        4 => any::<usize>().prop_map(Step::DropGuard),
        1 => Just(Step::Remove),
        1 => Just(Step::Message),
        2 => Just(Step::Tick),
    ]
}

pub(super) struct World {
    pub(super) state: State,
    pub(super) io: Io,
    pub(super) name: Arc<LockName>,
    pub(super) owners: [Owner; 3],
    pub(super) calls: Vec<Arc<Call>>,
    pub(super) guards: Vec<Grant>,
    /// The key: who holds it, how often.
    pub(super) key: Option<(ThreadId, u32)>,
    pub(super) removed: HashSet<ThreadId>,
}

impl World {
    pub(super) fn new() -> Self {
        World {
            state: State::new(),
            io: Io::new(Config::new("redis://unused")),
            name: Arc::new(LockName::new("k", None)),
            owners: [Owner::new(), Owner::new(), Owner::new()],
            calls: Vec::new(),
            guards: Vec::new(),
            key: None,
            removed: HashSet::new(),
        }
    }

    pub(super) fn request(&self, owner: usize, once: bool, watched: bool) -> Request {
        Request {
            name: self.name.clone(),
            owner: self.owners[owner],
            patience: if once { Patience::Once } else { Patience::Until(Moment::FAR) },
            lease: Lease::new(Duration::from_secs(3600)).unwrap(),
            watched,
            max_hold: None,
        }
    }

    pub(super) fn take(&mut self, step: Step) {
        match step {
            Step::Call { owner, once, watched } => {
                let request = self.request(owner, once, watched);
                let call = Call::new(request, Moment::now());
                self.state.begin(&self.io, &call);
                self.calls.push(call);
            }
            Step::BriefCall { owner } => {
                let lease = Lease::new(Duration::from_millis(1)).unwrap();
                let call = Call::new(Request { lease, ..self.request(owner, false, false) }, Moment::now());
                self.state.begin(&self.io, &call);
                self.calls.push(call);
            }
            Step::Deliver => self.deliver(|world, op| Ok(world.execute(op))),
            Step::LoseAnswer { executed } => self.deliver(|world, op| {
                if executed {
                    world.execute(op);
                }
                Err(Failure::Unknown(Trouble::Timeout))
            }),
            Step::Poll(n) if !self.calls.is_empty() => {
                let n = n % self.calls.len();
                let mut cx = Context::from_waker(std::task::Waker::noop());
                if let Poll::Ready(found) = self.calls[n].poll(&mut cx) {
                    self.calls.remove(n);
                    if let Found::Outcome(Ok(Some(grant))) = found {
                        self.guards.push(grant);
                    }
                }
            }
            Step::DropCall(n) if !self.calls.is_empty() => {
                let call = self.calls.remove(n % self.calls.len());
                match call.abandon() {
                    Some(grant) => self.state.leave(&self.io, grant.thread, grant.watched, None),
                    None => self.state.withdraw(&self.io, &call),
                }
            }
            Step::DropGuard(n) if !self.guards.is_empty() => {
                let grant = self.guards.remove(n % self.guards.len());
                self.state.leave(&self.io, grant.thread, grant.watched, None);
            }
            Step::Remove => self.removed.extend(self.key.take().map(|(thread, _)| thread)),
            Step::Message => self.state.heard(&self.io, self.name.channel()),
            Step::Tick => self.tick(),
            Step::Poll(_) | Step::DropCall(_) | Step::DropGuard(_) => {}
        }
    }

    /// What the scripts do.
    pub(super) fn execute(&mut self, op: &Op) -> Reply {
        match op {
            Op::Acquire { thread, count, lease, .. } => match self.key {
                Some((holder, _)) if holder == *thread => {
                    self.key = Some((*thread, *count));
                    Reply::Acquired
                }
                _ if *count > 1 => Reply::Gone,
                Some(_) => Reply::Held { ttl: Some(Duration::from_secs(3600)) },
                None => {
                    // A brief lease is over at once.
                    self.key = (lease.as_millis() > 1).then_some((*thread, 1));
                    Reply::Acquired
                }
            },
            Op::Release { thread, remaining, .. } => match &mut self.key {
                Some((holder, count)) if holder == thread && *remaining > 0 => {
                    *count = *remaining;
                    Reply::Kept
                }
                Some((holder, _)) if holder == thread => {
                    self.key = None;
                    Reply::Released { receivers: Some(0) }
                }
                _ => Reply::NotHolder { by: None },
            },
            Op::Renew { holds, .. } => Reply::Renewed(
                holds
                    .iter()
                    .map(|(_, thread)| match self.key {
                        Some((holder, _)) if holder == *thread => Renewal::Renewed,
                        _ => Renewal::NotHeld,
                    })
                    .collect(),
            ),
            Op::HoldCount { thread, .. } => match self.key {
                Some((holder, count)) if holder == *thread => Reply::HoldCount(count.into()),
                _ => Reply::HoldCount(0),
            },
            other => panic!("not asked by the state: {other:?}"),
        }
    }

    pub(super) fn deliver(&mut self, outcome: impl FnOnce(&mut Self, &Op) -> Result<Reply, Failure>) {
        let Some((op, tag)) = self.io.pushed.lock().pop_front() else { return };
        let result = outcome(self, &op);
        let answer = Answer { result, handed: Moment::now(), first_epoch: 1, last_epoch: 1 };
        self.state.on_answer(&self.io, tag, answer);
    }

    pub(super) fn tick(&mut self) {
        let later = Moment::now().after(Duration::from_secs(60));
        let mut due = Vec::new();
        let threads: Vec<_> = self.state.holds.keys().copied().collect();
        for thread in threads {
            if !matches!(self.state.holds.get(&thread).map(|h| &h.phase), Some(Phase::Doubtful(_))) {
                self.state.look_at_hold(&self.io, thread, later, &mut due);
            }
        }
        self.state.renew(&self.io, &due);
        if let Some(key) = self.state.keys.get_mut(&self.name) {
            key.try_at = key.try_at.map(|_| Moment::now());
        }
        let name = self.name.clone();
        self.state.look_at_key(&self.io, &name, Moment::now());
    }

    /// No guard says that it is held while the server says otherwise, unless the key was removed under it.
    pub(super) fn check(&self) {
        for guard in &self.guards {
            if guard.hold.end().is_none() && !self.removed.contains(&guard.thread) {
                let holder = self.key.map(|(thread, _)| thread);
                assert_eq!(holder, Some(guard.thread), "a guard that does not know that it is lost");
            }
        }
    }

    /// At rest, nobody waits for a lock without a moment at which to look again, unless it is held here.
    pub(super) fn check_waiters(&self) {
        for key in self.state.keys.values().filter(|key| !key.queue.is_empty()) {
            assert!(key.active.is_some() || key.try_at.is_some(), "a waiter that sleeps for ever");
        }
    }

    /// Everything in flight is answered, and answered again what that leads to.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            if self.io.pushed.lock().is_empty() {
                return self.check_waiters();
            }
            self.take(Step::Deliver);
            self.check();
        }
        panic!("it never comes to rest");
    }

    pub(super) fn doubtful(&self) -> HashSet<ThreadId> {
        let doubtful =
            |(t, h): (&ThreadId, &super::super::state::Hold)| matches!(h.phase, Phase::Doubtful(_)).then_some(*t);
        self.state.holds.iter().filter_map(doubtful).collect()
    }
}
